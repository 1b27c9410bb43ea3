"use strict";
(() => {
  const $ = id => document.getElementById(id);
  const { create } = wm;
  const ARTICLES = ["You can return a train ticket until one day before departure.", "Our office is open from nine to five.", "Tickets for children are half price.", "To get your money back, cancel the booking in the app."];
  const examples = {
    "negation": { a: "The coffee is not good.", b: "This is bad coffee." },
    "paraphrase": { a: "A man is slicing bread in the kitchen.", b: "Someone cuts a loaf of bread at home." },
    "same words, other meaning": { a: "The dog bit the man.", b: "The man bit the dog." },
    "search": { mode: "rank", a: "how do I cancel my ticket?", b: ARTICLES.join("\n") },
    "why not the other": { mode: "contrast", a: "how do I cancel my ticket?", b: ARTICLES[3], c: ARTICLES[2] },
    "a passage": { mode: "highlight", a: "can I bring my dog?", b: "Our cabins stand in the forest, an hour from the city. Each has a stove, two beds and a view of the lake. Pets are welcome in the cabins near the road, if they are kept on a leash; cats and dogs pay nothing. Breakfast is served from eight to ten." },
  };
  // What each mode asks for, and of which place; `list` is explained faster.
  const modes = {
    pair: { names: ["First text", "Second text"], rows: 2, show: whymatchView, name: "whymatchView",
      ask: () => ["/api/explain", { text_a: $("a").value, text_b: $("b").value, groups: $("unit").value === "sentences" ? ["a", "b"].map(sentencesOf) : null }] },
    rank: { names: ["Query", "Documents, one on each line: a text, or JSON with text, id, title"], rows: 6, list: true, show: whymatchRanking, name: "whymatchRanking",
      ask: () => ["/api/rank", { query: $("a").value, documents: documentsOf($("b").value), groups: $("unit").value === "sentences" ? [null, "sentences"] : null }] },
    contrast: { names: ["Query", "One document"], rows: 4, list: true, show: whymatchContrast, name: "whymatchContrast",
      ask: () => ["/api/contrast", { query: $("a").value, one: { text: $("b").value, title: "the first" }, other: { text: $("c").value, title: "the other" } }] },
    highlight: { names: ["Query", "Passage"], rows: 7, list: true, show: whymatchHighlights, name: "whymatchHighlights",
      ask: () => ["/api/highlight", { query: $("a").value, document: $("b").value, unit: $("unit").value }] },
  };
  // A text of one sentence is shown by words beside sentences.
  const sentencesOf = name => /[.!?…。！？][\s\S]*\S[\s\S]{20,}/.test($(name).value) ? "sentences" : null;
  let models = [], running = null;
  let panels = []; // what is shown: [{ mode, data, saved }]

  const mode = () => document.querySelector("input[name=mode]:checked").value;
  const model = () => models.find(({ name }) => name === $("model").value) ?? models[0];
  // Lists and passages are explained at the faster layer.
  const MANY = 80; // words
  const isLong = () => ["a", "b"].reduce((words, name) => words + $(name).value.split(/\s+/).length, 0) > MANY;
  const recommended = () => modes[mode()].list || isLong() ? model().list_layer : model().layer;
  let chosen = false; // whether a person has chosen the layer, which is then left alone

  function setMode(value) {
    document.querySelector(`input[name=mode][value="${value}"]`).checked = true;
    labelFields();
  }
  function labelFields() {
    const { names, rows } = modes[mode()];
    $("name-a").textContent = names[0];
    $("name-b").textContent = names[1];
    $("b").rows = rows;
    $("field-c").hidden = mode() !== "contrast";
    $("c").required = mode() === "contrast";
    $("unit-field").hidden = mode() === "contrast";
    $("compare-field").hidden = mode() !== "pair";
    $("open-name").textContent = mode() === "rank" ? "Open documents (txt, CSV, JSONL) …" : "Open a text …";
    if (model()) chooseModel();
  }

  function showLayer() {
    if (!model()) return;
    const layer = Number($("layer").value), last = model().layers, best = recommended();
    $("layer-shown").textContent = `${layer} of ${last}${layer === 0 ? ", the input" : layer === last ? ", the output" : ""}${layer === best ? " ★ recommended" : ""}`;
    $("settings").firstElementChild.textContent = `${$("model").selectedOptions[0].text}, layer ${$("layer-shown").textContent}`;
    $("layer-note").replaceChildren();
    if (layer === best) return;
    $("layer-note").append(`For this model and view, layer ${best} is recommended. `,
      create("button", { type: "button", class: "link", onclick: () => { chosen = false; followTexts(); markStale(); } }, `Use layer ${best}`));
  }
  function chooseModel() {
    chosen = false;
    followTexts();
  }
  function followTexts() {
    if (chosen) return showLayer();
    $("layer").max = model().layers;
    $("layer").value = recommended();
    $("layers").replaceChildren(create("option", { value: recommended(), label: "recommended" }));
    return showLayer();
  }

  // The state is kept behind the # of the address, which browsers do not send: no server and no log sees it.
  const state = () => new URLSearchParams({ mode: mode(), a: $("a").value, b: $("b").value, ...(mode() === "contrast" ? { c: $("c").value } : {}), model: $("model").value, layer: $("layer").value, unit: $("unit").value });
  // Fills the form from the address; returns whether there is something to explain.
  function restore() {
    const saved = new URLSearchParams(location.hash.slice(1));
    if (!saved.has("a")) return false;
    if (models.some(({ name }) => name === saved.get("model"))) $("model").value = saved.get("model");
    setMode(Object.hasOwn(modes, saved.get("mode")) ? saved.get("mode") : "pair");
    for (const name of ["a", "b", "c"]) $(name).value = saved.get(name) ?? "";
    $("unit").value = saved.get("unit") === "sentences" ? "sentences" : "words";
    chosen = /^\d+$/.test(saved.get("layer") ?? "");
    if (chosen) $("layer").value = saved.get("layer");
    followTexts();
    return $("a").value !== "" && $("b").value !== "";
  }
  // Says so where what is shown is not the answer to what the form asks.
  function markStale() {
    const stale = panels.length > 0 && running === null && panels.at(-1).saved !== String(state());
    $("stale").hidden = !stale;
    $("results").classList.toggle("stale", stale);
  }

  // --- documents

  // One document on each line: a text, or an object as in a JSONL file.
  function documentsOf(lines) {
    return lines.split("\n").filter(line => line.trim()).map(line => {
      if (!line.trimStart().startsWith("{")) return line;
      try { return documentOf(JSON.parse(line)); } catch { return line; }
    });
  }
  const TEXTS = ["text", "document", "sentence", "content", "body", "passage"]; // usual names of the column
  function documentOf(row) {
    if (typeof row === "string") return row;
    const keys = Object.keys(row ?? {}), find = (...names) => keys.find(key => names.includes(key.toLowerCase()));
    const text = find(...TEXTS) ?? keys.at(-1), id = find("id", "_id"), title = find("title", "name");
    const string = key => key === undefined || row[key] === null || row[key] === "" ? null : String(row[key]);
    const others = keys.filter(key => ![text, id, title, "metadata"].includes(key));
    return { text: string(text) ?? "", id: string(id), title: string(title), metadata: { ...(row?.metadata ?? {}), ...Object.fromEntries(others.map(key => [key, row[key]])) } };
  }
  // The cells of the row that begins with a line, and the number of the line after it; null where quotation marks are malformed.
  function cellsOf(lines, number) {
    const cells = [];
    let line = lines[number], next = number + 1, at = 0;
    for (;;) {
      let cell = "";
      if (line[at] === '"') {
        for (let closed = !(at += 1); !closed;) {
          const mark = line.indexOf('"', at);
          if (mark < 0 && next === lines.length) return null;
          if (mark < 0) [cell, line, next, at] = [`${cell}${line.slice(at)}\n`, lines[next], next + 1, 0];
          else [closed, cell, at] = line[mark + 1] === '"' ? [false, cell + line.slice(at, mark + 1), mark + 2] : [true, cell + line.slice(at, mark), mark + 1];
        }
        if (at < line.length && line[at] !== ",") return null;
      } else {
        const end = line.indexOf(",", at);
        [cell, at] = end < 0 ? [line.slice(at), line.length] : [line.slice(at, end), end];
      }
      cells.push(cell);
      if (at >= line.length) return { cells, next };
      at += 1;
    }
  }
  // The rows of a CSV or TSV file, and the numbers of lines that are not part of one. What is wrong with a line costs no other.
  function rowsOf(text, tabs) {
    const lines = text.split(/\r\n|\r|\n/), rows = [], bad = [];
    for (let number = 0; number < lines.length;) {
      const row = tabs ? { cells: lines[number].split("\t").map(cell => /^"(?:[^"]|"")*"$/.test(cell) ? cell.slice(1, -1).replaceAll('""', '"') : cell), next: number + 1 } : cellsOf(lines, number);
      const width = rows[0]?.cells.length ?? row?.cells.length, good = row && row.cells.length >= width && row.cells.slice(width).every(cell => !cell);
      if (lines[number].trim()) good ? rows.push({ cells: row.cells.slice(0, width), line: number + 1 }) : bad.push(number + 1);
      number = good && lines[number].trim() ? row.next : number + 1;
    }
    return { rows, bad };
  }
  // A document as one line of the field; line breaks inside of it need JSON.
  function lineOf(document) {
    const { text, id = null, title = null, metadata = {} } = typeof document === "string" ? { text: document } : document;
    const bare = !id && !title && !Object.keys(metadata).length && !/[\n\r]/.test(text) && !text.trimStart().startsWith("{");
    return bare ? text : JSON.stringify({ ...(id ? { id } : {}), ...(title ? { title } : {}), text, ...(Object.keys(metadata).length ? { metadata } : {}) });
  }
  async function readDocuments(file, alone, leftOut) {
    const text = (await file.text()).replace(/^\ufeff/, ""), ending = file.name.split(".").pop().toLowerCase();
    if (ending === "csv" || ending === "tsv") {
      const { rows, bad } = rowsOf(text, ending === "tsv"), names = rows[0]?.cells.map(name => name.trim()) ?? [];
      // A single column without a usual name begins with a document.
      const headed = names.length > 1 || TEXTS.includes(names[0]?.toLowerCase());
      const documents = rows.slice(headed ? 1 : 0).map(({ cells, line }) => ({ line, ...documentOf(headed ? Object.fromEntries(names.map((name, i) => [name, cells[i]])) : { text: cells[0] }) }));
      bad.push(...documents.filter(each => !each.text.trim()).map(each => each.line));
      if (bad.length) leftOut.push(`${file.name}: ${bad.length === 1 ? "line" : "lines"} ${bad.sort((a, b) => a - b).slice(0, 5).join(", ")}${bad.length > 5 ? ` and ${bad.length - 5} more` : ""}`);
      return documents.filter(each => each.text.trim()).map(({ line: _, ...document }) => document);
    }
    if (["jsonl", "ndjson", "json"].includes(ending)) {
      const parse = (line, i) => { try { return JSON.parse(line); } catch { throw new Error(`line ${i + 1} is not JSON: ${line.slice(0, 60)}`); } };
      const rows = ending === "json" ? [JSON.parse(text)].flat() : text.split("\n").filter(line => line.trim()).map(parse);
      const documents = rows.map(documentOf), empty = documents.findIndex(each => !(each.text ?? each).trim());
      if (empty >= 0) throw new Error(`document ${empty + 1} has no text: ${JSON.stringify(rows[empty]).slice(0, 60)}`);
      return documents;
    }
    return alone ? text.split("\n").filter(line => line.trim()).map(line => line.trim()) : [{ text: text.trim(), title: file.name }];
  }
  async function open(files) {
    $("error").textContent = "";
    try {
      if (mode() !== "rank") $("b").value = (await files[0].text()).trim();
      else {
        const leftOut = [], documents = (await Promise.all(files.map(file => readDocuments(file, files.length === 1, leftOut).catch(error => { throw new Error(`${file.name}: ${error.message}`); })))).flat();
        if (!documents.length) throw new Error(`${files.map(file => file.name).join(", ")}: there are no documents in it`);
        $("b").value = documents.map(lineOf).join("\n");
        $("status").textContent = `${documents.length} documents from ${files.map(file => file.name).join(", ")}.${leftOut.length ? ` Left out, since they cannot be read or have no text: ${leftOut.join("; ")}.` : ""}`;
      }
      followTexts();
      markStale();
    } catch (error) { $("error").textContent = error.message; }
  }

  // --- asking

  // Sends a request and reads the lines of its answer: progress, and then the result or an error.
  async function post(path, body, signal, report) {
    const response = await fetch(path, { method: "POST", signal, body: JSON.stringify(body),
      headers: { "Content-Type": "application/json", "Accept": "application/x-ndjson" } });
    if (!response.ok) {
      const { error } = await response.json().catch(() => ({}));
      throw new Error(error ?? `the server answered ${response.status}`);
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Error("the server closed the connection before it had answered");
      rest += value;
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const { error, result, progress, doing } = JSON.parse(line);
        if (error) throw new Error(error);
        if (result) return result;
        report(progress, doing);
      }
    }
  }

  async function run({ quiet = false } = {}) {
    running?.abort();
    const controller = running = new AbortController(), started = performance.now(), saved = String(state()), asked = mode();
    let doing = "Explaining", share = null;
    const tell = () => {
      const seconds = (performance.now() - started) / 1000;
      $("status").textContent = `${doing}… ${share ? `${Math.floor(100 * share)} %, ` : ""}${seconds.toFixed(0)} s`;
    };
    const clock = setInterval(tell, 500);
    $("error").textContent = "";
    $("progress").hidden = false;
    $("progress").removeAttribute("value");
    $("stop").hidden = false;
    $("stale").hidden = true;
    $("results").classList.remove("stale");
    $("results").classList.add("busy");
    $("results").setAttribute("aria-busy", "true");
    tell();
    if (!quiet) history.replaceState(null, "", "#" + saved);
    try {
      const [path, body] = modes[asked].ask();
      const data = await post(path, { ...body, model: $("model").value, layer: Number($("layer").value) }, controller.signal, (progress, name) => {
        if (progress > 0) { share = progress; $("progress").value = progress; }
        if (name) doing = `${name[0].toUpperCase()}${name.slice(1)}`;
        tell();
      });
      const keep = asked === "pair" && $("compare").checked && panels.every(panel => panel.mode === "pair");
      panels = [...(keep ? panels.slice(-2) : []), { mode: asked, data, saved }];
      showPanels();
      if (!quiet) remember(saved, data.score ?? data.difference ?? data.hits?.[0]?.score);
      $("status").textContent = quiet ? "" : `Done in ${((performance.now() - started) / 1000).toFixed(1)} s.`;
    } catch (error) {
      if (running !== controller) return; // a newer request has taken over
      $("status").textContent = error.name === "AbortError" ? "Stopped." : "";
      if (error.name !== "AbortError" && !quiet) $("error").textContent = error.message;
    } finally {
      clearInterval(clock);
      if (running === controller) {
        running = null;
        $("progress").hidden = $("stop").hidden = true;
        $("results").classList.remove("busy");
        $("results").removeAttribute("aria-busy");
        markStale();
      }
    }
  }

  // --- showing

  function showPanels() {
    const scale = panels.length > 1 ? whymatchView.scale(panels.map(({ data }) => data)) : null;
    $("results").replaceChildren(...panels.map(panel => {
      const section = create("section", { class: panels.length > 1 ? "panel" : "panel wide" }), view = create("div");
      const { show, name } = modes[panel.mode];
      section.append(...heading(panel), view);
      // Attached before it is drawn, since what fits depends on the width.
      requestAnimationFrame(() => {
        show(view, panel.data, { scale, tools: [["Copy link", "Copy a link that opens this", () => wm.copyText(`${location.origin}/#${panel.saved}`).then(() => "copied")], ["HTML", "Save as a page of its own", () => savePage(name, panel.data)]] });
        const changed = change(panel);
        if (changed) view.querySelector(".wm-stage").after(changed);
      });
      return section;
    }));
  }
  // What is different about this panel, where several are shown.
  function heading({ data }) {
    if (panels.length === 1) return [];
    const describe = data => ({ texts: JSON.stringify([data.a.text, data.b.text]), model: data.settings.model, layer: `layer ${data.settings.layer}`, unit: `${data.a.unit === "token" ? "word" : data.a.unit}s` });
    const all = panels.map(panel => describe(panel.data)), own = describe(data);
    const differing = ["model", "layer", "unit"].filter(key => new Set(all.map(each => each[key])).size > 1).map(key => key === "model" ? shortest(own.model, all.map(each => each.model)) : own[key]);
    if (new Set(all.map(each => each.texts)).size > 1) differing.unshift(`${data.a.text.slice(0, 24)} / ${data.b.text.slice(0, 24)}`);
    return [create("h2", {}, ...(differing.length ? differing : ["the same again"]).map(text => create("span", { class: "chip" }, text)))];
  }
  // The last part of a model's name, unless another has the same.
  function shortest(name, others) {
    const last = name.split("/").pop();
    return others.some(other => other !== name && other.split("/").pop() === last) ? name : last;
  }
  // The words whose totals differ most from those of the first panel, where both are of the same texts.
  function change(panel) {
    const first = panels[0];
    if (panel === first || ![0, 1].every(s => [first.data.a, first.data.b][s].text === [panel.data.a, panel.data.b][s].text)) return null;
    const rows = [0, 1].flatMap(s => {
      const before = new Map(wm.wordTotals(first.data, s).map(word => [`${word.start},${word.end}`, word.value]));
      return wm.wordTotals(panel.data, s).filter(word => wm.hasText(word) && before.has(`${word.start},${word.end}`)).map(word => ({ ...word, before: before.get(`${word.start},${word.end}`) }));
    }).map(word => ({ ...word, moved: word.value - word.before })).sort((x, y) => Math.abs(y.moved) - Math.abs(x.moved)).slice(0, 5);
    if (!rows.length) return null;
    const most = wm.largestOf([rows.map(row => row.moved)]);
    return create("div", { class: "change" }, wm.dim(`Moved most from the first panel, whose score is ${wm.minus(first.data.score.toFixed(4))}`),
      create("div", { class: "wm-bars wm-pairs" }, ...rows.map(row => wm.bar(`${row.word}: ${wm.signed(row.before, 2)} → ${wm.signed(row.value, 2)}`, row.moved, most))));
  }
  async function savePage(name, data) {
    const response = await fetch(`/page/${name}`);
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    // As the template engine does it: no "<" in the data can end the script that holds it.
    const json = JSON.stringify([data]).replace(/[<>&'\u2028\u2029]/g, sign => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
    wm.download("whymatch.html", (await response.text()).replace('id="data">[]<', () => `id="data">${json}<`), "text/html");
  }

  // --- history, in this browser only

  const KEY = "whymatch-history";
  const remembered = () => { try { return JSON.parse(localStorage.getItem(KEY)) ?? []; } catch { return []; } };
  function remember(saved, score) {
    try { localStorage.setItem(KEY, JSON.stringify([{ saved, score }, ...remembered().filter(each => each.saved !== saved)].slice(0, 20))); } catch { /* it is full, or not allowed */ }
    showHistory();
  }
  function showHistory() {
    const entries = remembered();
    $("history").hidden = !entries.length;
    $("history").querySelector("ol").replaceChildren(...entries.map(({ saved, score }) => {
      const one = new URLSearchParams(saved);
      return create("li", {}, create("span", {}, typeof score === "number" ? wm.minus(score.toFixed(3)) : ""), create("a", { href: `#${saved}` }, `${one.get("a")} / ${(one.get("b") ?? "").slice(0, 80)}`));
    }));
  }

  // --- controls

  $("form").addEventListener("submit", event => { event.preventDefault(); run(); });
  document.addEventListener("keydown", event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); $("form").requestSubmit(); } });
  $("stop").addEventListener("click", () => running?.abort());
  $("again").addEventListener("click", () => $("form").requestSubmit());
  $("modes").addEventListener("change", labelFields);
  $("model").addEventListener("change", chooseModel);
  $("layer").addEventListener("input", () => { chosen = true; showLayer(); });
  for (const name of ["a", "b"]) $(name).addEventListener("input", () => { if (models.length) followTexts(); });
  $("form").addEventListener("input", markStale);
  $("form").addEventListener("change", markStale);
  $("open").addEventListener("change", async () => { const files = [...$("open").files]; if (files.length) await open(files); $("open").value = ""; });
  $("forget").addEventListener("click", () => { localStorage.removeItem(KEY); showHistory(); });
  window.addEventListener("hashchange", () => { if (restore()) run(); });
  function fill(example) {
    setMode(example.mode ?? "pair");
    for (const name of ["a", "b", "c"]) $(name).value = example[name] ?? "";
    $("unit").value = "words";
    if (models.length) chooseModel();
  }
  for (const [name, example] of Object.entries(examples)) {
    $("examples").append(create("button", { type: "button", onclick: () => { fill(example); run(); } }, name));
  }
  $("settings").open = !matchMedia("(max-width: 40rem)").matches;
  showHistory();
  fetch("/api/models").then(response => response.json()).then(async served => {
    models = served;
    const names = models.map(({ name }) => name);
    $("model").replaceChildren(...names.map(name => create("option", { value: name, title: name }, shortest(name, names))));
    chooseModel();
    document.body.dataset.ready = "yes";
    if (restore()) return run();
    if (location.hash) return null;
    fill(examples.negation); // so that the first thing to see is an answer
    return run({ quiet: true });
  }).catch(() => { $("error").textContent = "The server does not answer."; });
})();
