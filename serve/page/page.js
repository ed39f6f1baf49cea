// What the parts of the page do together: the conversation, the key, the model's name.

import { addMessage, ask } from "./answer.js";
import { get, keepKey } from "./api.js";
import { chosenPack, listPacks, startDocuments } from "./documents.js";
import { hideLens, showLens } from "./lens.js";

const byId = (id) => document.getElementById(id);
const question = byId("question");
let messages = [];
let running = null;

function requestOf() {
  const request = { messages, stream: true, lens: true };
  if (byId("method").value) request.method = byId("method").value;
  if (byId("budget").value.trim()) request.budget = byId("budget").value.trim();
  if (byId("temperature").value) request.temperature = Number(byId("temperature").value);
  if (byId("max-tokens").value) request.max_tokens = Number(byId("max-tokens").value);
  if (chosenPack()) request.pack = chosenPack();
  return request;
}

function tell(line) {
  byId("speed").textContent = line;
}

/** Tell an error where the user looks; one about a key asks for it. */
function fail(error, element) {
  if (error.status === 401) askForKey();
  element.classList.add("failed");
  element.append(`${element.textContent ? "\n" : ""}${error.message}`);
}

async function submit() {
  const text = question.value.trim();
  if (!text || running) return;
  running = new AbortController();
  setRunning(true);
  hideLens();
  question.value = "";
  addMessage("user", text);
  messages.push({ role: "user", content: text });
  const element = addMessage("assistant");
  tell("waiting");
  try {
    const answer = await ask(requestOf(), element, running.signal, tell);
    messages.push({ role: "assistant", content: answer.text });
    if (answer.lens) showLens(answer.lens);
  } catch (error) {
    messages.pop();
    if (error.name === "AbortError") {
      tell("stopped");
    } else {
      tell("");
      question.value = text;
      fail(error, element);
    }
  } finally {
    running = null;
    setRunning(false);
    question.focus();
  }
}

function setRunning(is) {
  byId("stop").disabled = !is;
  byId("ask").disabled = is;
  byId("talk").setAttribute("aria-busy", String(is));
}

function clear() {
  running?.abort();
  messages = [];
  byId("messages").replaceChildren();
  hideLens();
  tell("");
  question.focus();
}

function askForKey() {
  byId("key-form").hidden = false;
  byId("key").focus();
}

/** Ask for what the page shows until the model is there. */
async function start() {
  try {
    const props = await get("/props");
    byId("model").textContent = props.model_alias;
    await listPacks();
    byId("key-form").hidden = true;
    if (!byId("key-form").contains(document.activeElement)) return;
    question.focus();
  } catch (error) {
    byId("model").textContent = error.message;
    if (error.status === 401) askForKey();
    else setTimeout(start, 1000);
  }
}

byId("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
question.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});
byId("stop").addEventListener("click", () => running?.abort());
byId("clear").addEventListener("click", clear);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(byId("key").value);
  byId("key").value = "";
  byId("key-form").hidden = true;
  question.focus();
  start();
});
startDocuments({ onChosen: clear, onRead: () => question.focus(), onKey: askForKey });
question.focus();
start();
