// Genkit, with its plugin for Ollama, which parses each HTTP chunk of a stream as one document. It sends no schema as
// `format`.

import { genkit, z } from 'genkit'
import { ollama } from 'genkitx-ollama'
import { check, MAX_TOKENS, MODEL, NO_CALL, QUESTION, RESULT, URL_, WEATHER } from './steps.mjs'

const models = [{ name: MODEL, type: 'chat', supports: { tools: true } }]
const embedders = [{ name: MODEL, dimensions: 64 }]
const ai = genkit({ plugins: [ollama({ models, embedders, serverAddress: URL_ })] })
const common = { model: `ollama/${MODEL}`, config: { num_predict: MAX_TOKENS } }

export async function chat() {
  check((await ai.generate({ ...common, prompt: QUESTION })).text, 'no text')
}

export async function stream() {
  const { response, stream } = ai.generateStream({ ...common, prompt: QUESTION })
  let pieces = 0
  for await (const piece of stream) pieces += piece.text ? 1 : 0
  check(pieces && (await response).text, 'no pieces')
}

export async function call() {
  const cities = []
  const weather = ai.defineTool(
    { name: 'get_weather', description: 'weather', inputSchema: z.object({ city: z.string() }), outputSchema: z.string() },
    async ({ city }) => {
      cities.push(city)
      return RESULT
    },
  )
  await ai.generate({ ...common, prompt: WEATHER, tools: [weather] })
  return cities.length ? '' : NO_CALL
}

export async function embed() {
  check((await ai.embed({ embedder: `ollama/${MODEL}`, content: 'one' }))[0].embedding.length > 8, 'no vector')
}
