// Every check with the client of @a2a-js/sdk 1.3.0, in 1.0 or 0.3. See README.md.

import assert from 'node:assert/strict';
import { Role, TaskState } from '@a2a-js/sdk';
import { ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory } from '@a2a-js/sdk/client';
import { GrpcTransportFactory } from '@a2a-js/sdk/client/grpc';
import { TaskNotFoundError } from '@a2a-js/sdk/errors';

const [urls, binding = 'JSONRPC', version = '1.0'] = process.argv.slice(2);
let url = '';
const LIMIT = 10_000;

class Absent extends Error {}

const legacyCompat = { enabled: true };
const resolver = new DefaultAgentCardResolver({ legacyCompat });
const transports = { JSONRPC: JsonRpcTransportFactory, 'HTTP+JSON': RestTransportFactory, GRPC: GrpcTransportFactory };

// A card lists what its server speaks; of that, the binding and the version asked for.
async function connect(clientConfig) {
  const found = await resolver.resolve(url);
  const chosen = (i) => i.protocolBinding === binding && i.protocolVersion === version;
  const supportedInterfaces = found.supportedInterfaces.filter(chosen);
  assert(supportedInterfaces.length > 0, `the card has no ${binding} ${version}`);
  const factory = new ClientFactory({ transports: [new transports[binding]({ legacyCompat })], clientConfig });
  const client = await factory.createFromAgentCard({ ...found, supportedInterfaces });
  assert.equal(client.protocolVersion, version);
  return client;
}

const part = ($case, value, filename = '', mediaType = '') =>
  ({ content: { $case, value }, metadata: undefined, filename, mediaType });

const request = (parts, task) => ({
  tenant: '', configuration: undefined, metadata: undefined,
  message: {
    messageId: crypto.randomUUID(), role: Role.ROLE_USER, taskId: task?.id ?? '', contextId: task?.contextId ?? '',
    parts: parts.map((p) => (typeof p === 'string' ? part('text', p) : p)),
    metadata: undefined, extensions: [], referenceTaskIds: [],
  },
});

async function send(parts, { task, polling = false } = {}) {
  return (await connect({ polling })).sendMessage(request(parts, task));
}

async function sendTask(parts, options) {
  const answer = await send(parts, options);
  assert('status' in answer, 'a message');
  return answer;
}

const textOf = (parts) => parts.map((p) => (p.content?.$case === 'text' ? p.content.value : '')).join('');
const stateOf = (of) => TaskState[of.status.state];
const artifacts = (task) => task.artifacts.map((artifact) => textOf(artifact.parts));

async function next(events) {
  const { done, value } = await events.next();
  assert(!done, 'the stream is over');
  return value.payload;
}

async function firstTask(events) {
  const payload = await next(events);
  assert.equal(payload.$case, 'task');
  return payload.value;
}

async function lastState(events) {
  let last = '';
  let count = 0;
  for await (const { payload } of events) {
    if (payload.$case === 'task' || payload.$case === 'statusUpdate') last = stateOf(payload.value);
    count += 1;
  }
  return [last, count];
}

const checks = {
  async card() {
    const card = await resolver.resolve(url);
    assert(card.name && card.skills.length > 0);
    return card.supportedInterfaces.map((i) => `${i.protocolBinding} ${i.protocolVersion}`).join(', ');
  },

  async send() {
    const task = await sendTask(['hello']);
    assert.equal(stateOf(task), 'TASK_STATE_COMPLETED');
    assert.deepEqual(artifacts(task), ['hello']);
    assert(task.id && task.contextId);
    return `${task.history.length} messages in the history`;
  },

  async message() {
    const answer = await send(['message']);
    assert('messageId' in answer, 'a task');
    assert.equal(textOf(answer.parts), 'just a message');
  },

  async fail() {
    assert.equal(stateOf(await sendTask(['fail'])), 'TASK_STATE_FAILED');
  },

  async parts() {
    const data = { a: [1, 2.5, 'x', null, true], b: { c: [] } };
    const raw = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
    const task = await sendTask([
      'parts',
      part('data', data),
      part('raw', raw, 'all.bin', 'application/octet-stream'),
      part('url', 'https://example.com/a.png', '', 'image/png'),
    ]);
    assert.equal(task.artifacts.length, 1);
    const [first, second, third] = task.artifacts[0].parts;
    assert.deepEqual(first.content, { $case: 'data', value: data });
    assert.equal(second.content.$case, 'raw');
    assert.deepEqual(Buffer.from(second.content.value), raw);
    assert.deepEqual([second.filename, second.mediaType], ['all.bin', 'application/octet-stream']);
    assert.deepEqual(third.content, { $case: 'url', value: 'https://example.com/a.png' });
  },

  async stream() {
    const client = await connect();
    let [state, text, events] = ['', '', 0];
    for await (const { payload } of client.sendMessageStream(request(['stream:20']))) {
      events += 1;
      if (payload.$case === 'artifactUpdate') text += textOf(payload.value.artifact.parts);
      else state = stateOf(payload.value);
      if (payload.$case === 'task') text = artifacts(payload.value).join('');
    }
    assert.equal(state, 'TASK_STATE_COMPLETED');
    assert.equal(text, Array.from({ length: 20 }, (_, i) => `chunk ${i} `).join(''));
    return `${events} events`;
  },

  async get() {
    const sent = await sendTask(['hello']);
    const client = await connect();
    const task = await client.getTask({ tenant: '', id: sent.id });
    assert.equal(stateOf(task), 'TASK_STATE_COMPLETED');
    assert.deepEqual(artifacts(task), ['hello']);
    assert.equal(textOf(task.history[0].parts), 'hello');
  },

  async list() {
    if (version === '0.3') throw new Absent('0.3 has it in no binding of this client');
    const sent = await sendTask(['hello']);
    const found = await (await connect()).listTasks({
      tenant: '', contextId: sent.contextId, status: TaskState.TASK_STATE_UNSPECIFIED, pageToken: '',
      statusTimestampAfter: undefined,
    });
    assert.deepEqual(found.tasks.map((task) => task.id), [sent.id]);
    return `${found.totalSize} in all`;
  },

  async multi_turn() {
    const asked = await sendTask(['ask']);
    assert.equal(stateOf(asked), 'TASK_STATE_INPUT_REQUIRED');
    assert.equal(textOf(asked.status.message.parts), 'Which one?');
    const task = await sendTask(['the red one'], { task: asked });
    assert.equal(task.id, asked.id);
    assert.equal(stateOf(task), 'TASK_STATE_COMPLETED');
    assert.deepEqual(artifacts(task), ['You said: the red one']);
  },

  async cancel() {
    const client = await connect();
    const running = await sendTask(['ticks:300'], { polling: true });
    const task = await client.cancelTask({ tenant: '', id: running.id, metadata: undefined });
    assert.equal(stateOf(task), 'TASK_STATE_CANCELED');
    assert.equal(stateOf(await client.getTask({ tenant: '', id: running.id })), 'TASK_STATE_CANCELED');
  },

  async cancel_stream() {
    const client = await connect();
    const events = client.sendMessageStream(request(['ticks:300']));
    const running = await firstTask(events);
    await client.cancelTask({ tenant: '', id: running.id, metadata: undefined });
    const [last] = await lastState(events);
    assert.equal(last, 'TASK_STATE_CANCELED');
  },

  async resubscribe() {
    const client = await connect();
    const first = client.sendMessageStream(request(['ticks:15']));
    const running = await firstTask(first);
    const second = client.resubscribeTask({ tenant: '', id: running.id });
    assert.equal((await firstTask(second)).id, running.id);
    const [[one, n], [two, m]] = await Promise.all([lastState(first), lastState(second)]);
    assert.deepEqual([one, two], ['TASK_STATE_COMPLETED', 'TASK_STATE_COMPLETED']);
    return `${n} and ${m} more events`;
  },

  async unknown_task() {
    const client = await connect();
    return refused(client.getTask({ tenant: '', id: crypto.randomUUID() }), TaskNotFoundError);
  },

  async finished_task() {
    const done = await sendTask(['hello']);
    return refused(send(['more'], { task: done }), Error);
  },
};

async function refused(answer, kind) {
  let found;
  try {
    found = await answer;
  } catch (error) {
    assert(error instanceof kind, `${error.name}: ${error.message}`);
    return `${error.name}: ${error.message}`;
  }
  throw new Error(`no error, but ${JSON.stringify(found)}`);
}

let failed = false;
for (url of urls.split(',')) {
  for (const [name, check] of Object.entries(checks)) {
    let [ok, note] = [true, ''];
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`nothing after ${LIMIT / 1000} s`)), LIMIT);
    });
    try {
      note = (await Promise.race([check(), late])) ?? '';
    } catch (error) {
      [ok, note] = [error instanceof Absent ? null : false, `${error.name}: ${error.message}`];
    }
    clearTimeout(timer);
    failed ||= ok === false;
    console.log(JSON.stringify({ url, check: name, ok, note: note.slice(0, 500) }));
  }
}
process.exit(failed ? 1 : 0);
