// What the SDKs of OpenAI and Anthropic for JavaScript make of a server of assets/tool-caller, with their own helpers.
//
//     npm install --prefix tests/ring/npm
//     node tests/ring/npm/check.mjs http://127.0.0.1:8000
//
// It prints the name of each check that has passed, and exits with 1 at the first that has not.

import assert from "node:assert/strict";

import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const url = process.argv[2];
const options = { apiKey: "none", maxRetries: 0, timeout: 60_000 };
const openai = new OpenAI({ baseURL: `${url}/v1`, ...options });
const anthropic = new Anthropic({ baseURL: url, ...options });
const model = (await openai.models.list()).data[0].id;

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const question = { role: "user", content: "How is the weather in Oslo?" };
const result = "foggy, 13 degrees";
const answer = "It is foggy, 13 degrees in Oslo.";
const input = { city: "Oslo" };
const chatTools = [{ type: "function", function: { name: "get_weather", description: "It knows.", parameters } }];
const responseTools = [{ type: "function", name: "get_weather", parameters, strict: false }];
const messageTools = [{ name: "get_weather", description: "It knows.", input_schema: parameters }];

const checks = {
  async "chat: a streamed call, and its result"() {
    const seen = { deltas: "", done: [] };
    const stream = openai.chat.completions.stream({ model, messages: [question], tools: chatTools });
    stream.on("tool_calls.function.arguments.delta", (event) => (seen.deltas += event.arguments_delta));
    stream.on("tool_calls.function.arguments.done", (event) => seen.done.push(event.name));
    const choice = (await stream.finalChatCompletion()).choices[0];
    assert.equal(choice.finish_reason, "tool_calls");
    const [call] = choice.message.tool_calls;
    assert.deepEqual(JSON.parse(call.function.arguments), input);
    assert.deepEqual([JSON.parse(seen.deltas), seen.done], [input, ["get_weather"]]);
    const messages = [question, choice.message, { role: "tool", tool_call_id: call.id, content: result }];
    const last = openai.chat.completions.stream({ model, messages, tools: chatTools, stream_options: { include_usage: true } });
    let content = "";
    last.on("content", (delta) => (content += delta));
    assert.equal(await last.finalContent(), answer);
    assert.equal(content, answer);
    assert.ok((await last.totalUsage()).completion_tokens > 0);
  },

  async "chat: the SDK's own loop of tools, whole and streamed"() {
    for (const stream of [false, true]) {
      const asked = [];
      const called = (args) => {
        asked.push(args);
        return result;
      };
      const runnable = { type: "function", function: { ...chatTools[0].function, function: called, parse: JSON.parse } };
      const runner = openai.chat.completions.runTools({ model, stream, messages: [question], tools: [runnable] });
      assert.equal(await runner.finalContent(), answer);
      assert.deepEqual(asked, [input]);
    }
  },

  async "chat: a stream that its reader gives up"() {
    const stream = openai.chat.completions.stream({ model, messages: [question], max_tokens: 900, ignore_eos: true });
    const read = async () => {
      for await (const chunk of stream) {
        assert.equal(chunk.object, "chat.completion.chunk");
        stream.abort();
      }
    };
    await assert.rejects(read(), OpenAI.APIUserAbortError);
    assert.ok(stream.aborted);
  },

  async "responses: a streamed call, continued and shown"() {
    const kinds = [];
    const stream = openai.responses.stream({ model, input: [question], tools: responseTools });
    let deltas = "";
    stream.on("response.function_call_arguments.delta", (event) => (deltas += event.delta));
    for await (const event of stream) kinds.push(event.type);
    const response = await stream.finalResponse();
    assert.deepEqual([kinds[0], kinds.at(-1)], ["response.created", "response.completed"]);
    const [call] = response.output;
    assert.equal(call.type, "function_call");
    assert.deepEqual([JSON.parse(deltas), JSON.parse(call.arguments)], [input, input]);
    const output = { type: "function_call_output", call_id: call.call_id, output: result };
    const next = { model, previous_response_id: response.id, input: [output], tools: responseTools };
    const last = openai.responses.stream(next);
    let text = "";
    last.on("response.output_text.delta", (event) => (text += event.delta));
    assert.equal((await last.finalResponse()).output_text, answer);
    assert.equal(text, answer);
    const named = { model, input: [question, { type: "item_reference", id: call.id }, output], tools: responseTools };
    assert.equal((await openai.responses.create(named)).output_text, answer);
    assert.equal((await openai.responses.retrieve(response.id)).id, response.id);
    assert.ok((await openai.responses.create({ model, input: "Hi" }))._request_id);
  },

  async "messages: a streamed call, and its result"() {
    const asked = { model, max_tokens: 500, tools: messageTools };
    const stream = anthropic.messages.stream({ ...asked, messages: [question] });
    let json = "";
    const blocks = [];
    stream.on("inputJson", (delta) => (json += delta));
    stream.on("contentBlock", (block) => blocks.push(block.type));
    const message = await stream.finalMessage();
    assert.deepEqual([message.stop_reason, blocks], ["tool_use", ["tool_use"]]);
    assert.deepEqual([JSON.parse(json), message.content[0].input], [input, input]);
    assert.ok(stream.request_id);
    const content = [{ type: "tool_result", tool_use_id: message.content[0].id, content: result }];
    const messages = [question, { role: "assistant", content: message.content }, { role: "user", content }];
    const last = anthropic.messages.stream({ ...asked, messages });
    let text = "";
    last.on("text", (delta) => (text += delta));
    assert.equal(await last.finalText(), answer);
    assert.equal(text, answer);
    const whole = await anthropic.messages.create({ ...asked, messages });
    assert.equal(whole.content[0].text, answer);
    assert.match(whole._request_id, /^[0-9a-f]+$/);
    assert.ok((await anthropic.messages.countTokens({ model, messages, tools: messageTools })).input_tokens > 0);
  },

  async "messages: the SDK's own loop of tools, whole and streamed"() {
    for (const stream of [false, true]) {
      const asked = [];
      const run = (args) => {
        asked.push(args);
        return result;
      };
      const tools = [{ ...messageTools[0], run, parse: (content) => content }];
      const runner = anthropic.beta.messages.toolRunner({ model, max_tokens: 500, stream, messages: [question], tools });
      const message = await runner.runUntilDone();
      assert.equal(message.content[0].text, answer);
      assert.deepEqual(asked, [input]);
    }
  },

  async "errors have the SDKs' classes"() {
    const asked = { model: "none", messages: [question] };
    await assert.rejects(openai.chat.completions.create(asked), (error) => {
      assert.ok(error instanceof OpenAI.NotFoundError);
      assert.deepEqual([error.status, error.param], [404, "model"]);
      return Boolean(error.requestID);
    });
    for (const stream of [false, true]) {
      const bad = { ...asked, model, temperature: 9, stream };
      await assert.rejects(openai.chat.completions.create(bad), (error) => {
        assert.ok(error instanceof OpenAI.BadRequestError);
        return error.param === "temperature";
      });
      await assert.rejects(anthropic.messages.create({ ...bad, max_tokens: 5 }), (error) => {
        assert.ok(error instanceof Anthropic.BadRequestError);
        assert.equal(error.error.error.type, "invalid_request_error");
        return Boolean(error.requestID);
      });
    }
    const gone = { model, input: "Hi", previous_response_id: "resp_none" };
    await assert.rejects(openai.responses.create(gone), OpenAI.NotFoundError);
    await assert.rejects(anthropic.messages.stream({ ...asked, max_tokens: 5 }).finalMessage(), Anthropic.NotFoundError);
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`passed: ${name}`);
}
