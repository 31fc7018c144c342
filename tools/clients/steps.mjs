// What the steps of Node.js's clients have in common, as in steps.py.

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
