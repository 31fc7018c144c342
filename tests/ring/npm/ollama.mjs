// What Ollama's client for JavaScript makes of a server of assets/tool-caller.
//
//     npm install --prefix tests/ring/npm
//     node tests/ring/npm/ollama.mjs http://127.0.0.1:8000
//
// It prints the name of each check that has passed, and exits with 1 at the first that has not.

import assert from "node:assert/strict";

import { Ollama } from "ollama";

const client = new Ollama({ host: process.argv[2] });
const model = (await client.list()).models[0].name;

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "get_weather", description: "It knows.", parameters } }];
const question = { role: "user", content: "How is the weather in Oslo?" };
const noTool = "I have no tool for that.";
const greedy = { temperature: 0, num_predict: 50 };

async function gather(stream, text) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  const last = parts.at(-1);
  assert.ok(last.done && last.done_reason === "stop");
  for (const name of ["total_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"]) {
    assert.ok(last[name] > 0, name);
  }
  return parts.map(text).join("");
}

const refusal = (status, text) => (error) => {
  assert.deepEqual([error.name, error.status_code], ["ResponseError", status]);
  assert.match(error.message, text);
  return true;
};

const checks = {
  async "lists and descriptions"() {
    assert.equal((await client.generate({ model, prompt: "" })).done_reason, "load");
    const [listed] = (await client.list()).models;
    const [running] = (await client.ps()).models;
    for (const shown of [listed, running]) {
      assert.deepEqual([shown.name, shown.model, shown.details.family], [model, model, "llama"]);
      assert.ok(shown.size > 0 && shown.digest && shown.details.quantization_level);
    }
    assert.ok(new Date(listed.modified_at) < new Date() && new Date(running.expires_at) > new Date());
    const shown = await client.show({ model });
    assert.ok(shown.capabilities.includes("tools") && shown.capabilities.includes("completion"));
    assert.equal(shown.model_info["llama.context_length"], 1024);
    assert.ok(shown.template.includes(".Tools") && !shown.template.includes(".Suffix"));
    assert.match((await client.version()).version, /^\d+\.\d+/);
  },

  async "chat: a call and its result, whole and streamed"() {
    for (const stream of [false, true]) {
      const messages = [question];
      const asked = { model: `${model}:latest`, messages, tools, options: greedy };
      let calls;
      if (stream) {
        const parts = [];
        await gather(await client.chat({ ...asked, stream }), (part) => parts.push(...(part.message.tool_calls ?? [])));
        calls = parts;
      } else {
        calls = (await client.chat(asked)).message.tool_calls;
      }
      assert.deepEqual([calls.length, calls[0].function.name, calls[0].function.arguments], [1, "get_weather", { city: "Oslo" }]);
      messages.push({ role: "assistant", content: "", tool_calls: calls });
      messages.push({ role: "tool", tool_name: "get_weather", content: "foggy, 13 degrees" });
      const answer = "It is foggy, 13 degrees in Oslo.";
      if (stream) assert.equal(await gather(await client.chat({ ...asked, stream }), (part) => part.message.content), answer);
      else assert.equal((await client.chat(asked)).message.content, answer);
    }
  },

  async "generate: whole, streamed, raw and with a system text"() {
    const asked = { model, prompt: question.content, options: greedy };
    assert.equal((await client.generate({ ...asked, think: false })).response, noTool);
    assert.equal(await gather(await client.generate({ ...asked, stream: true }), (part) => part.response), noTool);
    const prompt = `<|im_start|>user\n${question.content}<|im_end|>\n<|im_start|>assistant\n`;
    assert.equal((await client.generate({ ...asked, prompt, raw: true })).response, noTool);
    assert.equal((await client.generate({ ...asked, system: "", keep_alive: "5m" })).response, noTool);
  },

  async "a format is kept"() {
    const format = { type: "object", properties: { colour: { enum: ["red", "green"] } }, required: ["colour"] };
    const { message } = await client.chat({ model, messages: [question], format });
    assert.ok(["red", "green"].includes(JSON.parse(message.content).colour));
  },

  async "embeddings"() {
    const { embeddings, prompt_eval_count } = await client.embed({ model, input: ["How far?", "To the moon"], truncate: true });
    assert.deepEqual(embeddings.map((vector) => vector.length), [64, 64]);
    assert.ok(prompt_eval_count > 0);
    assert.equal((await client.embed({ model, input: "How far?", dimensions: 8 })).embeddings[0].length, 8);
    assert.equal((await client.embeddings({ model, prompt: "How far?" })).embedding.length, 64);
  },

  async "an empty prompt loads or unloads"() {
    assert.equal((await client.generate({ model, prompt: "" })).done_reason, "load");
    assert.equal((await client.chat({ model, messages: [] })).done_reason, "load");
    assert.equal((await client.generate({ model, prompt: "", keep_alive: 0 })).done_reason, "unload");
  },

  async "a stream that its reader gives up"() {
    const long = { model, prompt: "On", raw: true, stream: true, options: { num_predict: 900, ignore_eos: true } };
    for (const abort of [(stream) => stream.abort(), () => client.abort()]) {
      const stream = await client.generate(long);
      const read = async () => {
        for await (const part of stream) {
          assert.ok(!part.done);
          abort(stream);
        }
      };
      await assert.rejects(read(), (error) => error.name === "AbortError");
    }
  },

  async "errors are the client's"() {
    const missing = { model: "none", messages: [question] };
    await assert.rejects(client.chat(missing), refusal(404, /not found/));
    await assert.rejects(client.chat({ ...missing, stream: true }), refusal(404, /not found/));
    await assert.rejects(client.chat({ ...missing, model, options: { temperature: 9 } }), refusal(400, /temperature/));
    await assert.rejects(client.show({ model: "none" }), refusal(404, /not found/));
    const unsupported = [
      () => client.pull({ model: "llama3" }),
      () => client.pull({ model: "llama3", stream: true }),
      () => client.create({ model: "n", from: "llama3" }),
      () => client.push({ model }),
      () => client.copy({ source: model, destination: "n" }),
      () => client.delete({ model }),
    ];
    for (const call of unsupported) await assert.rejects(call(), refusal(501, /is not supported/));
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`passed: ${name}`);
}
