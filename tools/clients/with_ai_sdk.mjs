// Vercel's AI SDK, with its provider for servers like OpenAI's.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { embedMany, generateObject, generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'
import { check, MAX_TOKENS, MODEL, QUESTION, RESULT, URL_, WEATHER } from './steps.mjs'

const provider = createOpenAICompatible({ name: 'sluice', baseURL: `${URL_}/v1`, supportsStructuredOutputs: true })
const common = { model: provider(MODEL), maxOutputTokens: MAX_TOKENS, maxRetries: 0 }

export async function chat() {
  check((await generateText({ ...common, prompt: QUESTION })).text, 'no text')
}

export async function stream() {
  let pieces = 0
  for await (const piece of streamText({ ...common, prompt: QUESTION }).textStream) pieces += piece ? 1 : 0
  check(pieces > 1, 'no pieces')
}

export async function call() {
  const cities = []
  const execute = async ({ city }) => {
    cities.push(city)
    return RESULT
  }
  const weather = tool({ description: 'weather', inputSchema: z.object({ city: z.string() }), execute })
  const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber ? 'auto' : 'required' })
  await generateText({ ...common, prompt: WEATHER, tools: { get_weather: weather }, prepareStep, stopWhen: stepCountIs(2) })
  check(cities.length, 'no call')
}

export async function schema() {
  const schema = z.object({ name: z.string().max(20), age: z.int().min(0).max(150) })
  check((await generateObject({ ...common, schema, prompt: 'Invent a person.' })).object.name, 'no person')
}

export async function embed() {
  const { embeddings } = await embedMany({ model: provider.embeddingModel(MODEL), values: ['one', 'two'] })
  check(embeddings.length === 2, 'no vectors')
}
