// Conversations as files: exported as JSON or Markdown, imported from JSON.

import {add, branch, newId} from "./conversations.js";
import {make} from "./dom.js";
import {fromDataUrl, readImages} from "./images.js";

const FORMAT = "sluice-conversations", MAX_BYTES = 300e6, MOST = 500;
const ROLES = ["user", "assistant", "tool"];
const TEXTS = ["content", "reasoning", "name", "tool_call_id", "model", "reason", "error"], NUMBERS = ["firstMs", "totalMs", "thoughtMs", "loadMs"];

export function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], {type}));
  make("a", {href: address, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

export async function asJson(conversations) {
  const urls = await readImages(conversations.flatMap(({messages}) => messages));
  return JSON.stringify({format: FORMAT, version: 1, conversations}, (_, value) => urls.get(value) ?? value, 1);
}

/** Returns the branch that is shown, with headings for who speaks. */
export async function asMarkdown(conversation) {
  const urls = await readImages(branch(conversation));
  const parts = branch(conversation).map(({role, model, name, content, files = [], calls = []}) => [
    `## ${role === "user" ? "You" : name ? `Result of ${name}` : model ?? "Model"}`,
    ...files.map(file => file.image ? `![${file.name.replace(/[\[\]\\]/g, "")}](${urls.get(file.image)})` : `*${file.name}*\n\n\`\`\`\`\n${file.text}\n\`\`\`\``), content,
    ...calls.map(call => `Calls \`${call.function.name}\`:\n\n\`\`\`json\n${call.function.arguments}\n\`\`\``),
  ].filter(Boolean).join("\n\n"));
  return `# ${conversation.title}\n\n${parts.join("\n\n")}\n`;
}

export const fileNameOf = ({title}) => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 40) || "conversation";

/** Returns the conversations of an exported file, with new ids. Throws an `Error` that names what is wrong. */
export async function readFile(file) {
  if (file.size > MAX_BYTES) throw new Error(`larger than ${MAX_BYTES / 1e6} MB`);
  let value;
  try {
    value = JSON.parse(await file.text());
  } catch (error) {
    throw new Error(`no JSON: ${error.message}`);
  }
  if (value?.format !== FORMAT || !Array.isArray(value.conversations)) throw new Error(`not an export of this page: "format" must be "${FORMAT}"`);
  if (value.conversations.length > MOST) throw new Error(`more than ${MOST} conversations`);
  return value.conversations.map((conversation, place) => readConversation(conversation, `conversation ${place + 1}`));
}

function readConversation(value, where) {
  check(typeof value?.title === "string" && Array.isArray(value.messages), where, "needs a title and messages");
  const settings = Object.entries(value.settings ?? {}).filter(([, setting]) => ["string", "number", "boolean"].includes(typeof setting));
  const conversation = {id: newId(), title: value.title, settings: Object.fromEntries(settings), messages: [], leaf: null, changed: Date.now()};
  const ids = new Map([[null, null]]);
  value.messages.forEach((message, place) => {
    const at = `${where}, message ${place + 1}`, parent = message?.parent ?? null;
    check(ids.has(parent), at, "its parent must be before it");
    ids.set(message.id, add(conversation, readMessage(message, at), ids.get(parent)).id);
  });
  conversation.leaf = ids.get(value.leaf) ?? conversation.leaf;
  return conversation;
}

/** Returns the known fields of a message. */
function readMessage(value, where) {
  check(ROLES.includes(value?.role) && typeof value.content === "string", where, `needs a role of ${ROLES.join(", ")} and a content`);
  const of = (kind, names) => names.filter(name => typeof value[name] === kind).map(name => [name, value[name]]);
  const message = {role: value.role, ...Object.fromEntries([...of("string", TEXTS), ...of("number", NUMBERS)]), calls: [], files: []};
  for (const call of value.calls ?? []) {
    const {id, function: called} = call ?? {};
    check([id, called?.name, called?.arguments].every(text => typeof text === "string"), where, "a call needs an id, a name and arguments");
    message.calls.push({id, type: "function", function: {name: called.name, arguments: called.arguments}});
  }
  for (const file of value.files ?? []) {
    const image = typeof file?.image === "string" ? fromDataUrl(file.image) : undefined;
    check(typeof file?.name === "string" && (image || (typeof file.text === "string" && image === undefined)), where, "a file needs a name, and a text or an image (a data: URL)");
    message.files.push(image ? {name: file.name, image} : {name: file.name, text: file.text});
  }
  const {prompt_tokens, completion_tokens} = value.usage ?? {};
  if (Number.isFinite(prompt_tokens) && Number.isFinite(completion_tokens)) message.usage = {prompt_tokens, completion_tokens};
  return message;
}

function check(isRight, where, wrong) {
  if (!isRight) throw new Error(`${where}: ${wrong}`);
}
