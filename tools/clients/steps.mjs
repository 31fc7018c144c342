// Runs the steps of one client of Node.js in its own folder: `node steps.mjs MODULE`, by tools/try_clients.py.
// The module's exports are those of steps.py; a line of JSON is written for each step.

import { pathToFileURL } from 'node:url'

export const URL_ = process.env.CLIENT_URL ?? 'http://127.0.0.1:8000'
export const MODEL = process.env.CLIENT_MODEL ?? ''
export const MAX_TOKENS = 100
export const QUESTION = 'Name three fruits.'
export const WEATHER = 'How is the weather in Rome?'
export const RESULT = 'It rains, 12 degrees.'
export const NO_CALL = 'the model made no call'

export function check(isGood, what) {
  if (!isGood) throw new Error(what)
}

if (process.argv[2]) {
  const client = await import(pathToFileURL(process.argv[2]))
  for (const step of ['chat', 'stream', 'call', 'schema', 'embed']) {
    const outcome = { step, outcome: client[step] ? 'works' : 'none', detail: '' }
    try {
      outcome.detail = (await client[step]?.()) ?? ''
    } catch (error) {
      Object.assign(outcome, { outcome: 'fails', detail: `${error.name}: ${error.message}` })
    }
    console.log(JSON.stringify(outcome))
  }
  process.exit(0)
}
