
// The page of `kvarn lens`: what shows.

const SPARE = "▸"; // a token that is not in the file: the last one written
const TOP = 12;
const grouped = (number) => number.toLocaleString("en");

class Page {
  constructor(data, text, overview) {
    this.data = data;
    this.text = text; // of each token, the number of its piece
    this.overview = overview; // [step · parts + part]: tokens read, over all layers and heads
    this.kept = new Map();
    this.step = 0;
    this.part = 0;
    this.row = -1; // of the picture; -1: none
    this.marks = "all"; // or "row": what that row read
    this.hit = null;
    this.drawn = 0;
  }

  piece(token) {
    return this.data.pieces[this.text[token]];
  }

  next(step) {
    const token = this.data.steps[step] + 1;
    return token < this.text.length ? this.piece(token) || "·" : SPARE;
  }

  async lists(step) {
    if (!(step < this.data.lists.length)) return null;
    if (!this.kept.has(step)) {
      if (this.kept.size > 8) this.kept.clear();
      const numbers = await unpacked(this.data.lists[step]);
      this.kept.set(step, listsOf(numbers, this.data.layers.length, this.data.heads));
    }
    return this.kept.get(step);
  }

  async choose(step) {
    this.step = Math.max(0, Math.min(this.data.steps.length - 1, step));
    const turn = ++this.drawn, lists = await this.lists(this.step);
    if (turn !== this.drawn) return; // another one was chosen meanwhile
    this.read = lists;
    this.show();
  }

  // The lists that marks and the most read parts are of.
  scoped() {
    const row = this.marks === "row" ? this.rows[this.row] : null;
    return (row ? row.lists : (this.read || []).flat()).filter((list) => list);
  }

  show() {
    const { data, step } = this, stored = data.steps[step] + 1;
    document.querySelectorAll("#written button").forEach((button, i) => {
      button.setAttribute("aria-pressed", String(i === step));
    });
    const left = this.read ? "" : ": what each layer read is left out of this page for its size";
    const word = this.next(step).trim() || "␣";
    element("chosen").textContent = `“${word}”, written after ${grouped(stored)} tokens${left}`;
    this.rows = rowsOf(data, this.read, element("heads").checked);
    this.row = Math.min(this.row, this.rows.length - 1);
    const height = Math.max(4, Math.min(16, Math.floor(480 / this.rows.length)));
    this.shares = this.rows.map((row) => row.lists && sharesOf(data, row.lists, stored));
    draw(element("detail"), this.shares, data.parts, height);
    this.name(height);
    this.showPart();
  }

  name(height) {
    const perRow = element("heads").checked ? this.data.heads : 1;
    element("names").replaceChildren(...this.data.layers.map((number) => {
      const label = document.createElement("div");
      label.textContent = `layer ${number}`;
      label.style.height = `${height * perRow}px`;
      return label;
    }));
  }

  showPart() {
    const { data, part } = this, first = part * data.part;
    const last = Math.min(first + data.part, this.text.length);
    const row = this.rows[this.row], scope = element("scope");
    scope.replaceChildren(new Option("all layers and heads", "all"));
    if (row) scope.append(new Option(row.name, "row"));
    scope.value = this.marks = row ? this.marks : "all";
    const frame = document.querySelector("#detail .frame"), n = this.rows.length;
    frame.hidden = false;
    frame.style.left = `${(100 * part) / data.parts}%`;
    frame.style.width = `${100 / data.parts}%`;
    frame.style.top = row ? `${(100 * this.row) / n}%` : "0";
    frame.style.height = row ? `${100 / n}%` : "100%";
    element("place").textContent = `Tokens ${grouped(first)} to ${grouped(last - 1)}`;
    this.mark(first, last);
    this.rank();
  }

  // The text of tokens first … last-1, those that were read marked.
  mark(first, last) {
    const lists = this.scoped(), readers = readersOf(lists, first, last), shown = [];
    for (let token = first; token < last; token++) {
      let n = readers[token - first], text = this.piece(token);
      const begun = token;
      // A character of several tokens is shown with the last of them.
      while (!text && token + 1 < last) {
        token++;
        n = Math.max(n, readers[token - first]);
        text = this.piece(token);
      }
      const hit = this.hit && token >= this.hit.first && begun <= this.hit.last;
      if (!n && !hit) {
        shown.push(text);
        continue;
      }
      const span = document.createElement(n ? "mark" : "span");
      span.textContent = text.replaceAll("\n", "↵\n") || "·";
      span.title = `token ${grouped(token)}: read by ${n} of ${lists.length}`;
      span.style.setProperty("--share", String(n / Math.max(1, lists.length)));
      span.classList.toggle("hit", Boolean(hit));
      shown.push(span);
    }
    element("text").replaceChildren(...shown);
  }

  // The parts of which most was read, without those that were read whole.
  most() {
    const { data } = this, stored = data.steps[this.step] + 1;
    return [...sharesOf(data, this.scoped(), stored)]
      .map((share, part) => ({ share, part }))
      .filter(({ share }) => share > 0 && share < 1)
      .sort((a, b) => b.share - a.share || a.part - b.part)
      .slice(0, TOP);
  }

  rank() {
    const { data } = this;
    element("most").replaceChildren(...this.most().map(({ share, part }) => {
      const item = document.createElement("li"), button = document.createElement("button");
      const from = grouped(part * data.part);
      button.textContent = `${percent(share)} from ${from}: ${this.begin(part)}`;
      button.addEventListener("click", () => this.go(part));
      item.append(button);
      return item;
    }));
  }

  begin(part) {
    let text = "";
    for (let i = part * this.data.part; i < this.text.length && text.length < 40; i++) {
      text += this.piece(i);
    }
    return `${text.slice(0, 40).replaceAll(/\s+/g, " ").trim()}…`;
  }

  go(part, row = this.row, marks = this.marks) {
    this.marks = marks;
    this.part = Math.max(0, Math.min(this.data.parts - 1, part));
    this.row = Math.max(-1, Math.min(this.rows.length - 1, row));
    this.showPart();
  }

  // The next place of some words, after the one before.
  find(words) {
    if (!this.whole) {
      this.starts = new Uint32Array(this.text.length + 1);
      const all = Array.from(this.text, (piece) => this.data.pieces[piece]);
      all.forEach((piece, i) => (this.starts[i + 1] = this.starts[i] + piece.length));
      this.whole = all.join("");
    }
    const same = this.hit && this.hit.words === words;
    let at = this.whole.indexOf(words, same ? this.hit.at + 1 : 0);
    if (at < 0 && same) at = this.whole.indexOf(words);
    const first = this.tokenAt(at), last = this.tokenAt(at + words.length - 1);
    this.hit = at < 0 ? null : { words, at, first, last };
    element("found").textContent = at < 0 ? "not in the context" : `token ${grouped(first)}`;
    this.go(at < 0 ? this.part : Math.floor(first / this.data.part));
  }

  tokenAt(character) {
    let low = 0, high = this.text.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= character) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

const MOVES = {
  ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
};

function showFacts(data) {
  const n = data.steps.length, all = data.n_layers - data.layers.length;
  const some = [
    `${data.method}`,
    `${grouped(data.n_tokens)} tokens`,
    `${data.layers.length} layers that chose, of ${data.heads} KV heads each` +
      (all ? ` (${all} read all they may and are left out)` : ""),
    `parts of ${grouped(data.part)} tokens`,
    `${n} tokens written` + (n < data.of ? ` of ${data.of} recorded` : ""),
  ];
  if (data.lists.length < n) {
    some.push(`the first ${data.lists.length} of them with layers and heads`);
  }
  element("facts").textContent = some.join(" · ");
}

function showWritten(page) {
  element("written").replaceChildren(...page.data.steps.map((_, step) => {
    const button = document.createElement("button");
    button.textContent = page.next(step).replaceAll("\n", "↵\n");
    button.classList.toggle("without", step >= page.data.lists.length);
    button.addEventListener("click", () => page.choose(step));
    return button;
  }));
}

function showOverview(page) {
  const { data, overview } = page;
  const rows = data.steps.map((position, step) => {
    const nLists = data.heads * data.chose[step], shares = new Float64Array(data.parts);
    return shares.map((_, i) => {
      const size = Math.max(1, sizeOf(i, data.part, position + 1) * nLists);
      return overview[step * data.parts + i] / size;
    });
  });
  draw(element("overview"), rows, data.parts, rows.length > 40 ? 4 : 8);
}

function listen(page) {
  const { data } = page, detail = element("detail"), overview = element("overview");
  const on = (name, event, call) => element(name).addEventListener(event, call);
  const cell = (event) => cellAt(event, detail, page.rows.length, data.parts);
  on("overview", "click", async (event) => {
    const { row, part } = cellAt(event, overview, data.steps.length, data.parts);
    page.part = part;
    await page.choose(row);
  });
  on("detail", "click", (event) => page.go(cell(event).part, cell(event).row, "row"));
  on("detail", "mousemove", (event) => {
    const { row, part } = cell(event), shares = page.shares[row];
    const first = part * data.part, last = Math.min(first + data.part, data.n_tokens) - 1;
    const read = shares ? `${percent(shares[part])} read` : "not recorded";
    element("readout").textContent = `${page.rows[row].name}, tokens ${first} to ${last}: ${read}`;
  });
  on("detail", "keydown", (event) => {
    const move = MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    page.go(page.part + move[0], page.row + move[1], "row");
  });
  on("before", "click", () => page.choose(page.step - 1));
  on("after", "click", () => page.choose(page.step + 1));
  on("earlier", "click", () => page.go(page.part - 1));
  on("later", "click", () => page.go(page.part + 1));
  on("heads", "change", () => page.show());
  on("scope", "change", () => page.go(page.part, page.row, element("scope").value));
  on("find", "keydown", (event) => {
    if (event.key === "Enter" && event.target.value) page.find(event.target.value);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    showOverview(page);
    page.show();
  });
}

async function main() {
  try {
    const data = JSON.parse(element("data").textContent);
    const page = new Page(data, await unpacked(data.text), await unpacked(data.overview));
    document.querySelector("main").hidden = false;
    showFacts(data);
    showWritten(page);
    showOverview(page);
    await page.choose(0);
    page.go(page.most()[0]?.part ?? 0);
    listen(page);
  } catch (error) {
    element("problem").hidden = false;
    element("problem").textContent =
      `This page cannot be shown: ${error.message}. It needs a browser of 2023 or newer.`;
    throw error;
  }
}

if (typeof document !== "undefined") main();
