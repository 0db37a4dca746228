// The peers' agent on @a2a-js/sdk 1.3.0: JSON-RPC, HTTP+JSON and gRPC, in 1.0 and 0.3. See README.md.

import { A2A_PROTOCOL_VERSION, AGENT_CARD_PATH, Role, TaskState } from '@a2a-js/sdk';
import { LegacyA2AService, legacyGrpcService } from '@a2a-js/sdk/compat/v0_3/server/grpc';
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from '@a2a-js/sdk/server';
import { UserBuilder, agentCardHandler, jsonRpcHandler, restHandler } from '@a2a-js/sdk/server/express';
import { A2AService, UserBuilder as GrpcUserBuilder, grpcService } from '@a2a-js/sdk/server/grpc';
import { Server, ServerCredentials } from '@grpc/grpc-js';
import express from 'express';

const port = Number(process.argv[2]);
const grpcPort = Number(process.argv[3] ?? 0);

const textPart = (text) => ({ content: { $case: 'text', value: text }, metadata: undefined, filename: '', mediaType: '' });
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

class Peer {
  canceled = new Set();

  cancelTask = async (taskId) => {
    this.canceled.add(taskId);
  };

  async execute(context, bus) {
    const { taskId, contextId, userMessage, task } = context;
    const text = userMessage.parts[0]?.content?.value ?? '';
    const say = (words) => ({
      messageId: crypto.randomUUID(), role: Role.ROLE_AGENT, taskId, contextId, parts: [textPart(words)],
      metadata: undefined, extensions: [], referenceTaskIds: [],
    });
    const stand = (state, words) => ({
      state, timestamp: new Date().toISOString(), message: words === undefined ? undefined : say(words),
    });
    const status = (state, words) =>
      bus.publish(AgentEvent.statusUpdate({ taskId, contextId, metadata: undefined, status: stand(state, words) }));
    const artifact = (artifactId, parts, append = false, lastChunk = true) =>
      bus.publish(AgentEvent.artifactUpdate({
        taskId, contextId, append, lastChunk, metadata: undefined,
        artifact: { artifactId, name: artifactId, description: '', parts, metadata: undefined, extensions: [] },
      }));

    if (text === 'message') {
      bus.publish(AgentEvent.message({ ...say('just a message'), taskId: '' }));
      bus.finished();
      return;
    }
    if (task === undefined) {
      bus.publish(AgentEvent.task({
        id: taskId, contextId, artifacts: [], history: [userMessage], metadata: undefined,
        status: stand(TaskState.TASK_STATE_SUBMITTED),
      }));
    }
    status(TaskState.TASK_STATE_WORKING);
    let end = TaskState.TASK_STATE_COMPLETED;
    if (task !== undefined) {
      artifact('answer', [textPart(`You said: ${text}`)]);
    } else if (text === 'ask') {
      status(TaskState.TASK_STATE_INPUT_REQUIRED, 'Which one?');
      bus.finished();
      return;
    } else if (text === 'fail') {
      end = TaskState.TASK_STATE_FAILED;
    } else if (text.startsWith('ticks:')) {
      for (let i = 0; i < Number(text.slice(6)) && !this.canceled.has(taskId); i++) {
        status(TaskState.TASK_STATE_WORKING, `tick ${i}`);
        await pause(50);
      }
      if (this.canceled.delete(taskId)) end = TaskState.TASK_STATE_CANCELED;
    } else if (text.startsWith('stream:')) {
      const n = Number(text.slice(7));
      for (let i = 0; i < n; i++) artifact('chunks', [textPart(`chunk ${i} `)], i > 0, i === n - 1);
    } else if (text.startsWith('parts')) {
      artifact('parts', userMessage.parts.slice(1));
    } else {
      artifact('echo', [textPart(text)]);
    }
    status(end);
    bus.finished();
  }
}

const base = `http://127.0.0.1:${port}`;
const addresses = [['JSONRPC', `${base}/`], ['HTTP+JSON', `${base}/rest`]];
if (grpcPort) addresses.push(['GRPC', `127.0.0.1:${grpcPort}`]);
const card = {
  name: '@a2a-js/sdk 1.3.0', description: 'An agent of another project', version: '1.0.0', provider: undefined,
  supportedInterfaces: [A2A_PROTOCOL_VERSION, '0.3'].flatMap((protocolVersion) =>
    addresses.map(([protocolBinding, url]) => ({ url, protocolBinding, tenant: '', protocolVersion }))),
  capabilities: { streaming: true, pushNotifications: false, extensions: [], extendedAgentCard: false },
  securitySchemes: {}, securityRequirements: [], defaultInputModes: ['text/plain'], defaultOutputModes: ['text/plain'],
  skills: [{
    id: 'echo', name: 'echo', description: 'Echoes', tags: ['echo'], examples: [], inputModes: [], outputModes: [],
    securityRequirements: [],
  }],
  documentationUrl: '', iconUrl: '', signatures: [],
};

const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new Peer());
const options = { requestHandler, userBuilder: UserBuilder.noAuthentication, legacyCompat: { enabled: true } };
const app = express();
app.use(`/${AGENT_CARD_PATH}`, agentCardHandler({ agentCardProvider: requestHandler, legacyCompat: { enabled: true } }));
app.use('/rest', restHandler(options));
app.use(jsonRpcHandler(options));
if (grpcPort) {
  const server = new Server();
  const userBuilder = GrpcUserBuilder.noAuthentication;
  server.addService(A2AService, grpcService({ requestHandler, userBuilder }));
  server.addService(LegacyA2AService, legacyGrpcService({ requestHandler, userBuilder }));
  await new Promise((done, fail) =>
    server.bindAsync(`127.0.0.1:${grpcPort}`, ServerCredentials.createInsecure(), (e) => (e ? fail(e) : done())));
}
app.listen(port, '127.0.0.1', () => console.log('READY'));
