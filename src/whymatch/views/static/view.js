"use strict";
// What every view is made of. Whatever comes from a text is set as textContent, never as markup.
const wm = (() => {
  const create = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "class") element.className = value;
      else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (value !== null && value !== false) element.setAttribute(key, value === true ? "" : value);
    }
    element.append(...children);
    return element;
  };
  const SVG = "http://www.w3.org/2000/svg";
  const createSvg = (name, attributes, ...children) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  // What rounds to zero has no sign.
  const minus = text => text.replace("-", Number(text) === 0 ? "" : "−");
  const signed = (value, digits = 3) => { const size = Math.abs(value).toFixed(digits); return (Number(size) === 0 ? "" : value < 0 ? "−" : "+") + size; };
  // As many digits as a value of this size needs to say something: pairs of long texts are small.
  const digitsOf = scale => scale < .003 ? 5 : scale < .03 ? 4 : 3;
  const shorten = (text, most = 40) => text.length > most ? `${text.slice(0, most - 1).trimEnd()}…` : text;
  const sum = values => values.reduce((x, y) => x + y, 0);
  const largestOf = rows => rows.flat().reduce((most, value) => Math.max(most, Math.abs(value)), 1e-12);
  const channel = value => `var(--${value < 0 ? "neg" : "pos"})`;
  // The theme limits how dark a tint may be, so that the text on it can be read.
  const shade = (value, scale) => `rgba(${channel(value)}, calc(var(--tint) * ${Math.min(1, Math.abs(value) / scale).toFixed(3)}))`;
  const dim = (...children) => create("div", { class: "wm-dim" }, ...children);
  // Spans count characters; indexes of a string count UTF-16 units.
  const slice = (characters, low, high) => characters.slice(low, high).join("");
  const hasText = span => span.end > span.start;
  const isExtra = kind => kind === "special" || kind === "prompt";

  // What the colours mean: one scale for everything beside it. `links` and `layer` are explained where there are such.
  function legend(scale, what, { links = false, layer = "" } = {}) {
    const sample = (value, dash) => createSvg("svg", { class: "wm-sample", viewBox: "0 0 38 12", "aria-hidden": "true" },
      createSvg("path", { d: "M1 2C14 2 24 10 37 10", "stroke-width": 3, "stroke-dasharray": dash, class: value < 0 ? "wm-down" : "wm-up" }));
    const items = [create("span", {}, `tint: ${what}`, create("span", { class: "wm-key" }, `lowers it ${signed(-scale, digitsOf(scale))}`, create("span", { class: "wm-ramp", "aria-hidden": "true" }), `${signed(scale, digitsOf(scale))} raises it`))];
    if (links) items.push(create("span", { class: "wm-link-key" }, "link: one pair", create("span", { class: "wm-key" }, sample(1, "none"), "raises the score"), create("span", { class: "wm-key" }, sample(-1, "5 4"), "lowers it; thicker is more")));
    if (layer) items.push(create("span", {}, layer));
    return create("div", { class: "wm-legend wm-dim" }, ...items);
  }

  // The end of a text that the model did not read.
  const unread = text => create("span", { class: "wm-unread", title: "The model did not read this." }, text);

  // A text as it is written, its spans coloured by what they add. Of a long one, `brief` shows what is around the strongest.
  function passage(text, spans, scale, { read = null, brief = false } = {}) {
    const characters = [...text], box = create("div", { class: "wm-passage", dir: "auto" });
    const ordered = spans.filter(hasText).sort((x, y) => x.start - y.start);
    const last = Math.max(ordered.at(-1)?.end ?? 0, read ?? characters.length), tail = characters.length - last;
    const [WORDS, AROUND] = [60, 9];
    let shown = ordered.map(() => true);
    if (brief && ordered.length > WORDS) {
      const strongest = ordered.map((span, i) => [Math.abs(span.score), i]).sort((x, y) => y[0] - x[0]).slice(0, 3).map(([, i]) => i);
      shown = ordered.map((_, i) => strongest.some(k => Math.abs(i - k) <= AROUND));
    }
    const short = shown.includes(false);
    let end = 0, gap = false;
    ordered.forEach((span, i) => {
      if (!shown[i]) { gap = true; end = span.end; return; }
      if (gap) { box.append(" … "); end = span.start; gap = false; }
      const mark = create("mark", { title: `${slice(characters, span.start, span.end)} ${signed(span.score)}${span.note ? `, ${span.note}` : ""}` }, slice(characters, span.start, span.end));
      mark.style.background = shade(span.score, scale);
      box.append(slice(characters, end, span.start), mark);
      end = span.end;
    });
    if (short) {
      if (gap) box.append(" …");
      const whole = create("button", { type: "button", class: "wm-plain wm-whole", onclick: () => box.replaceWith(passage(text, spans, scale, { read })) }, "Show the whole text");
      box.append(" ", whole);
      if (tail > 0) box.append(create("span", { class: "wm-dim" }, ` The model did not read its last ${tail} characters.`));
      return box;
    }
    box.append(slice(characters, end, last));
    if (tail > 0) box.append(unread(slice(characters, last)), create("span", { class: "wm-dim" }, " (The model did not read what is crossed out.)"));
    return box;
  }

  // What each word of one side has in all, [{word, start, end, value}]; what the model adds to the text is the last.
  function wordTotals(explanation, s, given = null) {
    const side = [explanation.a, explanation.b][s], other = [explanation.b, explanation.a][s];
    const entries = i => s === 0 ? explanation.matrix[i] : explanation.matrix.map(row => row[i]);
    const totals = given?.totals ?? side.tokens.map((_, i) => sum(entries(i)) + (side.effects[i] ?? 0));
    const groups = explanation.view.words ? explanation.view.words[s].groups : side.tokens.map((_, i) => [i]);
    const characters = [...side.text], words = [], rest = { word: "", start: 0, end: 0, value: given?.beside ?? sum(other.effects) + explanation.constant };
    for (const group of groups) {
      const value = sum(group.map(i => totals[i])), spans = group.map(i => side.offsets[i]);
      const start = Math.min(...spans.map(span => span[0])), end = Math.max(...spans.map(span => span[1]));
      if (end > start && !isExtra(side.kinds[group[0]])) words.push({ word: slice(characters, start, end), start, end, value });
      else { rest.value += value; rest.word = `${rest.word} ${group.map(i => side.tokens[i]).join(" ")}`.trim(); }
    }
    return rest.word ? [...words, rest] : words;
  }

  // A row: a label, a bar from the middle to the left (it lowers) or to the right (it raises), and the number.
  function bar(label, value, scale, { title = null, faint = false, more = [] } = {}) {
    const box = create("span", { class: "wm-bar" }), fill = create("span"), width = 50 * Math.min(1, Math.abs(value) / scale);
    Object.assign(fill.style, { width: `${width}%`, left: `${value < 0 ? 50 - width : 50}%`, background: `rgb(${channel(value)})` });
    box.append(fill);
    return create("div", { class: "wm-row", title }, create("span", { class: faint ? "wm-word wm-dim" : "wm-word" }, label), box,
      create("span", { class: "wm-number" }, signed(value, digitsOf(scale))), ...more);
  }

  function download(name, content, type) {
    const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
    create("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }
  const csvOf = rows => rows.map(row => row.map(cell => {
    const text = cell === null || cell === undefined ? "" : String(cell);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }).join(",")).join("\r\n") + "\r\n";

  // A picture of an element, drawn by the browser itself, on white, twice as sharp as a screen needs it.
  async function pictureOf(element) {
    const { width, height } = element.getBoundingClientRect(), copy = element.cloneNode(true), margin = 16;
    copy.querySelectorAll(".wm-controls, .wm-save, .wm-more, .wm-missing, .wm-whole, .wm-tools").forEach(each => each.remove());
    // A theme that follows the system would be resolved anew inside of the picture; so its values are written out.
    const theme = getComputedStyle(element);
    const values = ["--back", "--ink", "--dim", "--line", "--soft", "--pos", "--neg", "--tint"].map(name => `${name}: ${theme.getPropertyValue(name)};`).join(" ");
    const rules = [...(element.getRootNode().styleSheets ?? document.styleSheets)].flatMap(sheet => [...sheet.cssRules]).filter(rule => ![":root", ":host"].includes(rule.selectorText) && !rule.cssText.includes("prefers-color-scheme")).map(rule => rule.cssText).join("\n");
    const box = create("div", {}, create("style", {}, rules), copy);
    box.style.cssText = `${values} background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; padding: ${margin}px; width: ${width + 2 * margin}px`;
    // What was left out makes it shorter than the element.
    const measured = create("div", {}, copy.cloneNode(true));
    Object.assign(measured.style, { position: "absolute", visibility: "hidden", width: `${width}px` });
    document.body.append(measured);
    const size = { width: width + 2 * margin, height: Math.min(height, measured.getBoundingClientRect().height) + 2 * margin };
    measured.remove();
    const svg = `<svg xmlns="${SVG}" width="${size.width}" height="${size.height}"><foreignObject width="100%" height="100%">${new XMLSerializer().serializeToString(box)}</foreignObject></svg>`;
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
    await image.decode();
    const scale = Math.min(2, 16000 / Math.max(size.width, size.height)), canvas = create("canvas", { width: size.width * scale, height: size.height * scale });
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.drawImage(image, 0, 0);
    return new Promise((resolve, reject) => canvas.toBlob(blob => blob ? resolve(blob) : reject(new Error("this browser cannot draw it")), "image/png"));
  }

  async function copyText(text) {
    try { await navigator.clipboard.writeText(text); } catch {
      const area = create("textarea", {}, text); // a page opened from a disk has no access to the clipboard
      document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
    }
  }

  // Buttons that save a view: as a picture, as JSON, as a table. `more` are further ones: [name, function].
  function saving(root, data, rows, more = []) {
    const status = create("span", { class: "wm-dim", role: "status" });
    const say = text => { status.textContent = text; setTimeout(() => status.textContent = "", 2500); };
    const button = (name, title, act) => create("button", { type: "button", class: "wm-plain", title, onclick: async () => {
      try { say((await act()) ?? "saved"); } catch (error) { say(`Not saved: ${error.message}`); }
    } }, name);
    return create("span", { class: "wm-save" }, ...more.map(each => button(...each)),
      button("PNG", "Save as a picture", async () => download("whymatch.png", await pictureOf(root))),
      button("JSON", "Save all numbers", () => download("whymatch.json", JSON.stringify(plain(data), null, 1), "application/json")),
      button("CSV", "Save as a table", () => download("whymatch.csv", "\ufeff" + csvOf(rows()), "text/csv")), status);
  }
  // Results as the API and Explanation.to_dict give them: without what is for the page alone.
  function plain(data) {
    const { view, ...result } = data;
    return result.hits ? { ...result, hits: result.hits.map(hit => ({ ...hit, explanation: plain(hit.explanation) })) } : result;
  }

  return { create, createSvg, minus, signed, digitsOf, sum, largestOf, channel, shade, shorten, dim, legend, unread, passage, wordTotals, bar, saving, copyText, download, slice, hasText, isExtra };
})();

// Shows the words of one document, which sum to its score. `tools` are further buttons beside those that save.
function whymatchHighlights(root, data, { tools = [] } = {}) {
  const { create, signed, sum, largestOf, dim, legend, passage, hasText, bar } = wm;
  const inside = data.highlights.filter(hasText), scale = largestOf([inside.map(span => span.score)]);
  const beside = sum(data.highlights.filter(span => !hasText(span)).map(span => span.score));
  const strongest = [...inside].sort((x, y) => Math.abs(y.score) - Math.abs(x.score)).slice(0, 6);
  root.classList.add("wm");
  root.replaceChildren(create("div", { class: "wm-score" }, wm.minus(data.score.toFixed(4))),
    dim(`${data.unit} ${signed(sum(inside.map(span => span.score)), 4)}, what the model adds to the text ${signed(beside, 4)}${data.left_out ? `, ${data.unit} that are not shown ${signed(data.left_out, 4)}` : ""}: they sum to the score, error ${data.error.toExponential(0)}`),
    create("div", { class: "wm-stage wm-long" }, create("div", { class: "wm-texts" }, passage(data.text, data.highlights, scale, { read: data.read })),
      create("div", { class: "wm-summary wm-bars wm-pairs", role: "group", "aria-label": `The strongest ${data.unit}` }, ...strongest.map(span => bar(span.text, span.score, scale, { title: span.text })))),
    legend(scale, `what one of its ${data.unit} adds`),
    create("div", { class: "wm-controls" }, wm.saving(root, data, () => [["start", "end", "score", "text"], ...data.highlights.map(span => [span.start, span.end, span.score, span.text])], tools)));
}

// Shows why one document scores higher than another: the query's words, and both documents.
function whymatchContrast(root, data, { tools = [], saves = true } = {}) {
  const { create, signed, minus, largestOf, dim, legend, passage, sum, hasText, bar } = wm;
  const rows = data.by_query_word, largest = largestOf([rows.map(row => row.value)]);
  const sign = data.difference < 0 ? -1 : 1;
  const decisive = [...rows].sort((x, y) => sign * (y.value - x.value)).filter(row => sign * row.value > 0).slice(0, 3);
  const bars = rows.map(row => bar(row.word || "(reference)", row.value, largest, { faint: !hasText(row), title: `${data.name_a} ${signed(row.a)}, ${data.name_b} ${signed(row.b)}`,
    more: [create("span", { class: "wm-number wm-dim wm-both" }, `${signed(row.a)} against ${signed(row.b)}`)] }));
  const sides = [[data.a, data.name_a, data.score_a], [data.b, data.name_b, data.score_b]];
  const scale = largestOf(sides.map(([side]) => (side?.highlights ?? []).filter(hasText).map(span => span.score)));
  root.classList.add("wm");
  root.replaceChildren(
    create("div", { class: "wm-score" }, signed(data.difference, 4)),
    create("div", {}, `${data.name_a} ${minus(data.score_a.toFixed(4))} against ${data.name_b} ${minus(data.score_b.toFixed(4))}` +
      (decisive.length ? `. Decided by ${decisive.map(row => `“${row.word || "the references"}” ${signed(row.value)}`).join(", ")}.` : ".")),
    create("p", { class: "wm-dim" }, `Each bar is what ${data.name_a} gives a word of the query minus what ${data.name_b} does. They sum to ${signed(sum(rows.map(row => row.value)), 4)}; the difference is ${signed(data.difference, 4)}, error ${data.error.toExponential(0)}.`),
    create("div", { class: "wm-bars", role: "group", "aria-label": "The query's words" },
      create("div", { class: "wm-row wm-dim", "aria-hidden": "true" }, create("span"), create("span", { class: "wm-ends" }, create("span", {}, `← for ${data.name_b}`), create("span", {}, `for ${data.name_a} →`)), create("span"), create("span", { class: "wm-both" })), ...bars),
    legend(scale, "what a word of either document adds to that document's own score"),
    create("div", { class: "wm-compare" }, ...sides.map(([side, name, score]) => create("section", {}, create("h3", {}, `${name}, ${minus(score.toFixed(4))}`),
      side === null ? dim("A mean of embeddings has no words of its own.") : passage(side.text, side.highlights, scale, { read: side.read, brief: true })))),
    ...(saves ? [create("div", { class: "wm-controls" }, wm.saving(root, data, () => [["word", "start", "end", "value", "a", "b"], ...rows.map(row => [row.word, row.start, row.end, row.value, row.a, row.b])], tools))] : []));
}

// Shows a list of hits on one scale of colours; any two can be compared, and each opens to its explanation.
function whymatchRanking(root, data, { tools = [] } = {}) {
  const { create, minus, signed, largestOf, dim, legend, passage, wordTotals, hasText, shorten } = wm;
  const scale = largestOf(data.hits.map(hit => hit.highlights.filter(hasText).map(span => span.score)));
  const best = largestOf([data.hits.map(hit => hit.score)]);
  root.classList.add("wm");
  root.replaceChildren(create("p", {}, `The best ${data.hits.length} of ${data.searched} for: `, create("strong", {}, data.query)),
    legend(scale, "what a word adds to its document's score; one scale for all hits"));
  if (data.hits.length > 1 || data.background) root.append(comparison());
  root.append(...data.hits.map(hit => {
    const section = create("section"), details = create("details", { class: "wm-more" }, create("summary", {}, "all pairs of words"), section);
    details.addEventListener("toggle", () => { if (details.open && !section.hasChildNodes()) whymatchView(section, hit.explanation); });
    const meter = create("span", { class: "wm-meter", "aria-hidden": "true" }, create("span"));
    meter.firstChild.style.width = `${100 * Math.max(0, hit.score) / best}%`;
    const extra = Object.entries(hit.metadata ?? {}).map(([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`);
    const name = [hit.title, hit.id].filter(Boolean).join("  ·  ");
    return create("article", { class: "wm-hit hit" },
      create("h2", {}, `${hit.rank}. ${minus(hit.score.toFixed(4))}`, meter, name ? `  ${name}` : ""),
      ...(extra.length ? [dim(extra.join("  ·  "))] : []),
      passage(hit.text, hit.highlights, scale, { read: hit.read, brief: true }),
      dim(hit.answers.slice(0, 4).map(answer => `${shorten(answer.word)} ${signed(answer.total)}, of it ${signed(answer.value)} with “${shorten(answer.query_word)}”`).join("; ")), details);
  }), create("div", { class: "wm-controls" }, wm.saving(root, data, () => [["rank", "score", "id", "title", "text"], ...data.hits.map(hit => [hit.rank, hit.score, hit.id, hit.title, hit.text])], tools)));

  // Two hits side by side, or one beside what is usual; what each gives the query's words is a row of its own explanation.
  function comparison() {
    const usual = data.background && { ...data.background, usual: true };
    const box = create("section"), pick = (chosen, last = []) => {
      const select = create("select", { "aria-label": "A hit" }, ...data.hits.map((hit, i) => create("option", { value: i, selected: i === chosen }, `hit ${hit.rank}`)), ...last);
      select.addEventListener("change", show);
      return select;
    };
    const first = pick(0), second = pick(1, usual ? [create("option", { value: -1, selected: data.hits.length < 2 }, `what is usual: ${usual.name}`)] : []);
    const side = hit => ({ text: hit.text, highlights: hit.highlights, read: hit.read });
    function show() {
      const [one, other] = [first, second].map(select => data.hits[Number(select.value)] ?? usual);
      const [a, b] = [one, other].map(hit => wordTotals(hit.explanation ?? one.explanation, 0, hit.usual ? hit : null));
      const rows = a.map((word, i) => ({ ...word, a: word.value, b: b[i].value, value: word.value - b[i].value }));
      const difference = one.score - other.score;
      whymatchContrast(box, { difference, by_query_word: rows, score_a: one.score, score_b: other.score, a: side(one), b: other.usual ? null : side(other),
        name_a: `hit ${one.rank}`, name_b: other.usual ? other.name : `hit ${other.rank}`, error: Math.abs(difference - wm.sum(rows.map(row => row.value))) }, { saves: false });
    }
    const details = create("details", { class: "wm-why" }, create("summary", {}, "Why is one hit above another, or above the usual?"),
      create("div", { class: "wm-controls" }, first, create("label", {}, "against", second)), box);
    details.addEventListener("toggle", () => { if (details.open && !box.hasChildNodes()) show(); });
    return details;
  }
}

// Shows one explanation inside `root`. `scale`, as whymatchView.scale gives it, makes several comparable; `notify` is told
// of the level, of the part that is pinned, and of the one that is pointed at. Returns what moves it from outside.
function whymatchView(root, data, { scale = null, tools = [], notify = () => {} } = {}) {
  const { create, createSvg, minus, signed, digitsOf, sum, largestOf, channel, shade, legend, slice, isExtra, bar, shorten } = wm;
  const FULL = 20; // a table of more rows or columns than these shows the strongest of them
  const LONG = 40; // a text of more parts than these is a passage

  const sides = [data.a, data.b];
  const levels = whymatchView.levels(data);
  const names = { tokens: data.a.unit === "token" || data.b.unit === "token" ? "word pieces" : data.a.unit === data.b.unit ? `${data.a.unit}s` : "parts", words: "words" };

  let level; // the one that is shown, and what follows from it
  let largest, totals, largestTotal;
  let texts, svg, parts, cells, headers, shown;
  let threshold = 0; // pairs below this share of the largest are hidden
  let pinned = null; // [side, number of a part]
  const entriesOf = (side, i) => side === 0 ? level.matrix[i] : level.matrix.map(row => row[i]);
  const isVisible = value => Math.abs(value) >= threshold * largest;
  const exists = token => Boolean(token && parts[token[0]]?.[token[1]]);
  const isPinned = (side, i) => pinned !== null && pinned[0] === side && pinned[1] === i;

  root.classList.add("wm");
  root.replaceChildren(...header());
  const controls = create("div", { class: "wm-controls" });
  // The texts with what is strongest in them, side by side where there is room; what the colours mean; and the table.
  const stage = create("div", { class: "wm-stage" }), key = create("div"), table = create("div");
  const summary = create("div", { class: "wm-summary", "aria-live": "polite" });
  root.append(stage, key, controls, table);
  addControls();
  showLevel(firstLevel());
  new ResizeObserver(() => highlight(pinned)).observe(stage);
  return {
    show: name => {
      const choice = controls.querySelector(`input[value="${name}"]`);
      if (levels[name] && level !== levels[name]) { if (choice) choice.checked = true; showLevel(name); }
    },
    pin: token => { pinned = exists(token) ? [...token] : null; highlight(pinned); },
    hover: token => highlight(exists(token) ? token : pinned),
  };

  // Words, unless the page was asked for tokens.
  function firstLevel() {
    const wanted = data.view.begin ?? "words";
    return levels[wanted] ? wanted : "tokens";
  }

  // The score, a bar of what raises and what lowers it, and the same in words.
  function header() {
    const entries = data.matrix.flat();
    const raising = sum(entries.filter(value => value > 0)), lowering = sum(entries.filter(value => value < 0));
    const folded = data.settings.fold_reference;
    const reference = folded ? 0 : sum(sides.map(side => sum(side.effects))) + data.constant;
    const digits = value => minus(value.toFixed(4));
    const account = create("div", { class: "wm-account", role: "img",
      "aria-label": `Positive pairs ${signed(raising)}, negative pairs ${signed(lowering)}` + (folded ? "" : `, reference terms ${signed(reference)}`) });
    const length = raising - lowering + Math.abs(reference) || 1;
    for (const [value, colour] of [[raising, "rgb(var(--pos))"], [lowering, "rgb(var(--neg))"], [reference, "var(--dim)"]]) {
      const part = create("span");
      part.style.width = `${100 * Math.abs(value) / length}%`;
      part.style.background = colour;
      account.append(part);
    }
    const line = `${digits(raising)} from pairs that raise it, ${digits(lowering)} from pairs that lower it` +
      (folded ? "" : `, ${digits(reference)} from the references`) +
      (data.reduce === "sum" ? `: ${digits(sum(entries) + reference)}, error ${data.error.toExponential(0)}` : `. ${data.view.account}`) +
      (data.entry_error === null ? "" : `; entries within ±${data.entry_error.toExponential(0)}`);
    return [
      create("div", { class: "wm-head" }, create("div", { class: "wm-score" }, digits(data.score)),
        create("div", { class: "wm-dim wm-how" }, `${data.settings.similarity} by ${data.settings.model}, ${data.view.derivation}`)),
      account,
      create("div", { class: "wm-dim" }, line),
      ...sides.flatMap((side, s) => side.truncated
        ? [create("div", { class: "wm-note" }, `The ${s ? "second" : "first"} text is longer than the model reads; what it did not read is crossed out.`)] : []),
    ];
  }

  function addControls() {
    if (levels.words) {
      const group = `wm-level-${Math.random().toString(36).slice(2)}`; // another view on the page has another group
      const first = firstLevel();
      controls.append(create("fieldset", { "aria-label": "Show" }, ...["words", "tokens"].map(name => create("label", {},
        create("input", { type: "radio", name: group, value: name, checked: name === first, onchange: () => showLevel(name) }), names[name]))));
    }
    const percent = create("output", {}, "0 %");
    const slider = create("input", { type: "range", min: 0, max: 100, value: 0, "aria-label": "Hide pairs weaker than",
      oninput: () => { threshold = Number(slider.value) / 100; percent.textContent = `${slider.value} %`; colourCells(); } });
    controls.append(create("label", {}, "hide pairs weaker than", slider, percent, " of the strongest"),
      wm.saving(root, data, () => [["", ...level.tokens[1]], ...level.matrix.map((row, i) => [level.tokens[0][i], ...row])], tools));
  }

  // Builds texts and table for a level.
  function showLevel(name) {
    level = levels[name];
    pinned = null;
    largest = scale?.pair[name] ?? largestOf(level.matrix);
    totals = level.tokens.map((tokens, side) => tokens.map((_, i) => sum(entriesOf(side, i))));
    largestTotal = scale?.total[name] ?? largestOf(totals);
    parts = level.tokens.map((tokens, side) => tokens.map((_, i) => partOf(side, i)));
    texts = create("div", { class: "wm-texts" });
    svg = createSvg("svg", { class: "wm-links", "aria-hidden": "true" });
    sides.forEach((side, s) => {
      const box = create("div", { class: "wm-text", role: "group", "aria-label": s ? "Second text" : "First text", dir: "auto" });
      if (side.image) box.append(picture(s));
      else box.append(...flow(side, s, name));
      texts.append(box);
      // One stop for the Tab key in each text; arrows go on from there.
      box.querySelector(".wm-token")?.setAttribute("tabindex", "0");
    });
    texts.append(svg);
    stage.classList.toggle("wm-long", sides.some((side, s) => parts[s].length > LONG || side.text.length > 6 * LONG));
    const layer = data.settings.path === "none" || data.settings.path === "shapley" ? "" :
      `layer ${data.settings.layer}: ${data.settings.layer === 0 ? "words are what the model reads" : "words are what the model has made of them by there; deeper is faster, and mixes them more"}`;
    stage.replaceChildren(texts, summary);
    key.replaceChildren(legend(largestTotal, `what ${name === "words" ? "a word" : "one"} adds with all of the other text`, { links: true, layer }));
    table.replaceChildren(tableOf(), ...(data.view.missing ? [missing(data.view.missing[name], name)] : []));
    colourCells();
    notify("level", name);
    notify("pinned", null);
  }

  // The table of all pairs where it can be taken in, and otherwise of the strongest rows and columns.
  function tableOf(all = false) {
    const room = Math.max(4, Math.min(FULL, Math.floor(((root.getBoundingClientRect().width || 1000) - 130) / (22 + 10 * digitsOf(largest)))));
    const strongest = (side, most) => level.tokens[side].map((_, i) => [sum(entriesOf(side, i).map(Math.abs)), i])
      .sort((x, y) => y[0] - x[0]).slice(0, most).map(([, i]) => i).sort((x, y) => x - y);
    const counts = level.tokens.map(tokens => tokens.length);
    shown = [strongest(0, all ? counts[0] : FULL), strongest(1, all ? counts[1] : room)];
    const partial = shown.some((kept, side) => kept.length < counts[side]);
    cells = new Map(shown[0].map(i => [i, new Map(shown[1].map(j => [j, create("td", {}, minus(level.matrix[i][j].toFixed(digitsOf(largest))))]))]));
    headers = level.tokens.map((tokens, side) => new Map(shown[side].map(i => [i, create("th", { scope: side ? "col" : "row" }, tokens[i])])));
    const caption = create("caption", { class: "wm-dim" }, "Each cell is what one pair adds to the score." +
      (partial ? ` The strongest ${shown[0].length} of ${counts[0]} rows and ${shown[1].length} of ${counts[1]} columns. ` : ""));
    const box = create("div", { class: "wm-scroll", tabindex: 0, role: "region", "aria-label": "Pairs" }, create("table", {}, caption,
      create("thead", {}, create("tr", {}, create("td"), ...headers[1].values())),
      create("tbody", {}, ...shown[0].map(i => create("tr", {}, headers[0].get(i), ...cells.get(i).values())))));
    if (partial) caption.append(create("button", { type: "button", class: "wm-plain wm-all", onclick: () => { box.replaceWith(tableOf(true)); colourCells(); } }, `Show all ${counts[0]} × ${counts[1]}`));
    return box;
  }

  // The text as it was written, its parts in their places; then what the model adds to it, and what it did not read.
  function flow(side, s, name) {
    const offsets = level.offsets[s], characters = [...side.text], nodes = [], extras = [];
    let end = 0;
    parts[s].forEach((part, i) => {
      const [low, high] = offsets[i] ?? [0, 0];
      if (high > low && low >= end && !isExtra(level.kinds[s][i])) {
        const written = slice(characters, low, high), text = written.trimStart(); // some tokens begin with the space before
        nodes.push(slice(characters, end, low) + written.slice(0, written.length - text.length), part);
        part.textContent = text;
        if (name === "tokens" && side.unit === "token") part.classList.add("wm-piece");
        end = high;
      } else if (isExtra(level.kinds[s][i]) || high > 0) {
        part.classList.add("wm-extra");
        extras.push(part);
      } else nodes.push(part, " "); // where it stands in the text is not known
    });
    const read = side.truncated ? Math.max(end, 0, ...side.offsets.map(span => span[1])) : characters.length;
    if (end) nodes.push(slice(characters, end, read));
    if (side.truncated) nodes.push(wm.unread(slice(characters, read)));
    if (extras.length) nodes.push(create("span", { class: "wm-extras", title: "What the model adds to the text. It carries a part of the score too." }, ...extras));
    return nodes;
  }

  // What each part is worth in its own text's match with itself, less what it is worth here.
  function missing(values, name) {
    const most = largestOf(values);
    return create("details", { class: "wm-missing" }, create("summary", {}, "What is missing from a perfect match"),
      ...values.map((line, s) => create("div", { class: "wm-text", dir: "auto" },
        create("span", { class: "wm-dim" }, `${signed(sum(line))} in all: `),
        ...line.map((value, i) => {
          const part = create("span", { class: `wm-token${isExtra(level.kinds[s][i]) ? " wm-extra" : ""}`, title: signed(value) }, level.tokens[s][i]);
          part.style.background = shade(value, most);
          return create("span", {}, part, name === "words" ? " " : "\u200b");
        }))));
  }

  function partOf(side, i) {
    const token = level.tokens[side][i], here = [side, i];
    return create("span", { role: "button", tabindex: "-1", class: "wm-token", "aria-pressed": "false",
      "aria-label": `${token}, ${signed(totals[side][i], digitsOf(largestTotal))} in total`,
      onmouseenter: () => { highlight(here); notify("hovered", here); }, onfocus: () => highlight(here), onmouseleave: () => { highlight(pinned); notify("hovered", null); }, onblur: () => highlight(pinned),
      onclick: () => { pinned = isPinned(side, i) ? null : here; highlight(pinned ?? here); notify("pinned", pinned); },
      onkeydown: event => {
        if (event.key === "Escape") { pinned = null; highlight(here); notify("pinned", null); }
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.currentTarget.click(); }
        const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
        const box = step && texts.children[side + step[0]];
        const line = box?.querySelectorAll(".wm-token") ?? [];
        if (!line.length) return;
        const place = [...texts.children[side].querySelectorAll(".wm-token")].indexOf(event.currentTarget);
        line[Math.max(0, Math.min(line.length - 1, place + step[1]))].focus();
        event.preventDefault();
      } }, token);
  }

  // A picture with a button over each of its patches.
  function picture(side) {
    const { image: [source, width, height], boxes } = sides[side];
    const frame = create("div", { class: "wm-picture" }, create("img", { src: source, alt: "" }));
    parts[side].forEach((part, i) => {
      const [left, top, right, bottom] = boxes[i];
      if (right <= left) return;
      Object.assign(part.style, { left: `${100 * left / width}%`, top: `${100 * top / height}%`,
        width: `${100 * (right - left) / width}%`, height: `${100 * (bottom - top) / height}%` });
      frame.append(part);
    });
    return frame;
  }

  function colourCells() {
    for (const [i, row] of cells) for (const [j, cell] of row) {
      const value = level.matrix[i][j], visible = isVisible(value);
      cell.style.background = visible ? shade(value, largest) : "none";
      cell.classList.toggle("wm-faint", !visible);
    }
    highlight(pinned);
  }

  // Shows what one part matched, or, without one, the whole.
  function highlight(token) {
    root.querySelectorAll(".wm-on, .wm-mark").forEach(element => element.classList.remove("wm-on", "wm-mark"));
    parts.forEach((line, side) => line.forEach((part, i) => part.setAttribute("aria-pressed", String(isPinned(side, i)))));
    if (token === null) return highlightAll();
    const [side, i] = token, other = 1 - side, values = entriesOf(side, i);
    const cellOf = k => side === 0 ? cells.get(i)?.get(k) : cells.get(k)?.get(i);
    parts[side].forEach((part, k) => part.style.background = k === i ? shade(totals[side][i], largestTotal) : "none");
    parts[other].forEach((part, k) => part.style.background = shade(isVisible(values[k]) ? values[k] : 0, largest));
    parts[side][i].classList.add("wm-on");
    headers[side].get(i)?.classList.add("wm-on");
    values.forEach((_, k) => cellOf(k)?.classList.add("wm-on"));
    const strongest = values.map((value, k) => [value, k]).filter(([value]) => value && isVisible(value)).sort((x, y) => Math.abs(y[0]) - Math.abs(x[0]));
    if (strongest.length) {
      const best = strongest[0][1];
      cellOf(best)?.classList.add("wm-mark");
      headers[other].get(best)?.classList.add("wm-on");
      parts[other][best].classList.add("wm-on");
    }
    show([`“${shorten(level.tokens[side][i])}” adds ${signed(totals[side][i], digitsOf(largestTotal))} in total; its strongest pairs`], strongest.slice(0, 6).map(([, k]) => side === 0 ? [i, k] : [k, i]));
    drawLinks(strongest.slice(0, 12).map(([, k], rank) => side === 0 ? [i, k, rank === 0] : [k, i, rank === 0]));
  }

  function highlightAll() {
    parts.forEach((line, side) => line.forEach((part, i) => part.style.background = shade(totals[side][i], largestTotal)));
    // Sorted once: two texts of 200 words have 40,000 pairs, and this is drawn whenever the pointer leaves a word.
    level.strongest ??= level.matrix.flatMap((row, i) => row.map((value, j) => [value, i, j])).filter(([value]) => value).sort((x, y) => Math.abs(y[0]) - Math.abs(x[0])).slice(0, 6);
    show(["The strongest pairs.", create("span", { class: "wm-tools" }, " Point at a word, or tab to it, to see its own; click to pin it.")], level.strongest.filter(([value]) => isVisible(value)).map(([, i, j]) => [i, j]));
    drawLinks(level.links.map(([i, j]) => [i, j, true]));
  }

  function show(heading, pairs) {
    const rows = pairs.map(([i, j]) => bar(`${shorten(level.tokens[0][i], 24)} – ${shorten(level.tokens[1][j], 24)}`, level.matrix[i][j], largest, { title: `${level.tokens[0][i]} – ${level.tokens[1][j]}` }));
    while (rows.length < 6) rows.push(create("div", { class: "wm-row", "aria-hidden": "true" }, "\u00a0")); // so that nothing below jumps
    summary.replaceChildren(create("p", { class: "wm-dim" }, ...heading), create("div", { class: "wm-bars wm-pairs" }, ...rows));
  }

  // Draws [row, column, whether it is strong] as curves between the texts: where each is one line, so that none crosses words.
  function drawLinks(links) {
    svg.replaceChildren();
    const isLine = side => {
      const ends = parts[side].map(part => part.getBoundingClientRect().bottom);
      return Math.max(...ends) - Math.min(...ends) < 16;
    };
    const drawn = sides.every(side => !side.image) && isLine(0) && isLine(1);
    texts.classList.toggle("wm-linked", drawn);
    key.classList.toggle("wm-unlinked", !drawn);
    const origin = texts.getBoundingClientRect();
    if (!drawn || !origin.width) return;
    svg.setAttribute("viewBox", `0 0 ${origin.width} ${origin.height}`);
    for (const [i, j, strong] of links) {
      const value = level.matrix[i][j];
      if (!isVisible(value) || !value || !parts[0][i].isConnected || !parts[1][j].isConnected) continue;
      const from = parts[0][i].getBoundingClientRect(), to = parts[1][j].getBoundingClientRect();
      const x1 = from.left + from.width / 2 - origin.left, y1 = from.bottom - origin.top;
      const x2 = to.left + to.width / 2 - origin.left, y2 = to.top - origin.top, middle = (y1 + y2) / 2;
      const path = createSvg("path", { d: `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}` });
      path.style.stroke = `rgb(${channel(value)})`;
      path.style.strokeWidth = (1 + 7 * Math.min(1, Math.abs(value) / largest)).toFixed(1);
      path.style.opacity = strong ? .85 : .4;
      if (value < 0) path.style.strokeDasharray = "5 4"; // so that it differs without colour too
      svg.append(path);
    }
  }
}

// Two levels: tokens as they are, and words, whose entries are sums over their tokens.
whymatchView.levels = data => {
  const sides = [data.a, data.b];
  const levels = { tokens: { tokens: sides.map(side => side.tokens), kinds: sides.map(side => side.kinds), offsets: sides.map(side => side.offsets), matrix: data.matrix } };
  if (data.view.words) {
    const [rows, columns] = data.view.words.map(words => words.groups);
    levels.words = {
      tokens: data.view.words.map(words => words.labels),
      kinds: sides.map((side, s) => data.view.words[s].groups.map(group => side.kinds[group[0]])),
      offsets: sides.map((side, s) => data.view.words[s].groups.map(group => [Math.min(...group.map(i => side.offsets[i][0])), Math.max(...group.map(i => side.offsets[i][1]))])),
      matrix: rows.map(row => columns.map(column => wm.sum(row.map(i => wm.sum(column.map(j => data.matrix[i][j])))))),
    };
  }
  for (const [name, level] of Object.entries(levels)) level.links = data.view.links[name];
  return levels;
};

// The largest pair and the largest total of several explanations, at each level.
whymatchView.scale = explanations => {
  const scale = { pair: {}, total: {} };
  for (const levels of explanations.map(whymatchView.levels)) {
    for (const [name, { matrix }] of Object.entries(levels)) {
      const totals = [matrix.map(wm.sum), (matrix[0] ?? []).map((_, j) => wm.sum(matrix.map(row => row[j])))];
      scale.pair[name] = Math.max(scale.pair[name] ?? 0, wm.largestOf(matrix));
      scale.total[name] = Math.max(scale.total[name] ?? 0, wm.largestOf(totals));
    }
  }
  return scale;
};
