// Runs the steps of one client of Node.js in its own folder: `node run.mjs MODULE`, by tools/try_clients.py.
// The module's exports are those of steps.py; a line of JSON is written for each step.

import { pathToFileURL } from 'node:url'

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
