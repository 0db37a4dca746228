// The official MCP client for JavaScript, on `dragoman mcp`: over standard input and output, and over HTTP. See README.md.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const [where, ...words] = process.argv.slice(2);
const transport = where.startsWith("http")
  ? new StreamableHTTPClientTransport(new URL(where))
  : new StdioClientTransport({ command: where, args: words });
const client = new Client({ name: "peer", version: "1" }, { capabilities: { elicitation: {} } });
const forms = [];
client.setRequestHandler(ElicitRequestSchema, async (request) => {
  forms.push(request.params.message);
  return { action: "accept", content: { answer: "this one" } };
});
const said = (name, value) => console.log(JSON.stringify({ [name]: value }));
const texts = (result) => result.content.map((block) => block.text ?? block.type);

await client.connect(transport);
const tool = (await client.listTools()).tools[0].name;
said("tool", tool);
said("echo", texts(await client.callTool({ name: tool, arguments: { text: "hello" } }))[0]);
const progress = [];
await client.callTool({ name: tool, arguments: { text: "ticks:3" } }, undefined, {
  onprogress: (each) => progress.push(each.message),
});
said("progress", progress);
said("answer", texts(await client.callTool({ name: tool, arguments: { text: "ask" } }))[0]);
said("forms", forms);
const failed = await client.callTool({ name: tool, arguments: { text: "fail" } });
said("failed", failed.isError);
const stop = new AbortController();
try {
  await client.callTool({ name: tool, arguments: { text: "ticks:10000" } }, undefined, {
    signal: stop.signal,
    onprogress: () => stop.abort("enough"),
  });
} catch (error) {
  said("canceled", stop.signal.aborted);
}
await client.callTool({ name: tool, arguments: { text: "bye" } }); // the cancel has been sent before
await client.close();
