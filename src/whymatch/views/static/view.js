"use strict";
// One explanation, made visible. Everything that comes from a text goes through textContent, never through markup.
function whymatchView(root, data) {
  const make = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "class") element.className = value;
      else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (value !== null && value !== false) element.setAttribute(key, value === true ? "" : value);
    }
    element.append(...children);
    return element;
  };
  const signed = value => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3);
  const colour = (value, scale, most = 1) =>
    `rgba(var(--${value < 0 ? "neg" : "pos"}), ${(most * Math.min(1, Math.abs(value) / scale)).toFixed(3)})`;
  const sum = values => values.reduce((x, y) => x + y, 0);
  const largestOf = rows => Math.max(1e-12, ...rows.flat().map(Math.abs));

  // Tokens as they are, and words as sums of them: the same view of two matrices.
  const levels = { tokens: { tokens: [data.tokens_a, data.tokens_b], kinds: [data.kinds_a, data.kinds_b], matrix: data.matrix,
    links: data.view.links.tokens, share: data.view.share.tokens } };
  if (data.view.words) {
    const [a, b] = data.view.words;
    levels.words = {
      tokens: [a.labels, b.labels], links: data.view.links.words, share: data.view.share.words,
      kinds: [a.groups.map(g => data.kinds_a[g[0]]), b.groups.map(g => data.kinds_b[g[0]])],
      matrix: a.groups.map(rows => b.groups.map(columns => sum(rows.map(i => sum(columns.map(j => data.matrix[i][j])))))),
    };
  }
  const images = [data.image_a && { image: data.image_a, boxes: data.boxes_a }, data.image_b && { image: data.image_b, boxes: data.boxes_b }];
  let level = levels[data.view.begin] ? data.view.begin : "tokens", threshold = 0, pinned = null, now, buttons, cells, heads, sums, peak, largest, svg, texts;

  root.classList.add("wm");
  root.replaceChildren();
  const matrixTotal = sum(data.matrix.flat());
  const up = sum(data.matrix.flat().filter(v => v > 0)), down = sum(data.matrix.flat().filter(v => v < 0));
  const reference = sum(data.effects_a) + sum(data.effects_b) + data.constant;
  const folded = data.settings.fold_reference, sums_up = data.reduce === "sum";
  const whole = up - down + Math.abs(folded ? 0 : reference) || 1;
  const bar = make("div", { class: "wm-account", role: "img",
    "aria-label": `Positive pairs ${signed(up)}, negative pairs ${signed(down)}` + (folded ? "" : `, reference terms ${signed(reference)}`) });
  const stretch = (value, back) => {
    const part = make("span");
    part.style.width = `${100 * Math.abs(value) / whole}%`;
    part.style.background = back;
    bar.append(part);
  };
  stretch(up, "rgb(var(--pos))"); stretch(down, "rgb(var(--neg))");
  if (!folded) stretch(reference, "var(--dim)");
  const digits = value => value.toFixed(4).replace("-", "−");
  root.append(
    make("div", { class: "wm-score" }, digits(data.score)),
    make("div", { class: "wm-dim" }, `${data.settings.similarity} by ${data.settings.model}, layer ${data.settings.layer}`),
    bar,
    make("div", { class: "wm-dim" },
      `${digits(up)} from pairs that raise it, ${digits(down)} from pairs that lower it` +
      (folded ? "" : `, ${digits(reference)} from the references`) +
      (sums_up ? `: ${digits(matrixTotal + (folded ? 0 : reference))}, error ${data.error.toExponential(1)}` : `. ${data.view.account}`)));
  for (const [name, cut] of [["first", data.truncated_a], ["second", data.truncated_b]])
    if (cut) root.append(make("div", { class: "wm-note" }, `The ${name} text is longer than the model reads; its end was cut off.`));

  const controls = make("div", { class: "wm-controls" });
  if (levels.words) {
    const name = `wm-level-${Math.random().toString(36).slice(2)}`;
    controls.append(make("fieldset", { "aria-label": "Show" }, ...["tokens", "words"].map(value =>
      make("label", {}, make("input", { type: "radio", name, value, checked: value === level, onchange: () => { level = value; pinned = null; draw(); } }), value))));
  }
  const slider = make("input", { type: "range", min: 0, max: 100, value: 0, "aria-label": "Hide pairs weaker than",
    oninput: () => { threshold = Number(slider.value) / 100; shown.textContent = `${slider.value} %`; paint(); } });
  const shown = make("output", {}, "0 %");
  const copied = make("span", { class: "wm-dim", role: "status" });
  const { view, ...plain } = data;
  const copy = make("button", { type: "button", class: "wm-plain", onclick: async () => {
    const text = JSON.stringify(plain);
    try { await navigator.clipboard.writeText(text); } catch {
      const area = make("textarea", {}, text); // pages from a disk have no clipboard of their own
      document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
    }
    copied.textContent = "copied";
    setTimeout(() => copied.textContent = "", 2000);
  } }, "Copy as JSON");
  controls.append(make("label", {}, "hide weaker than", slider, shown), copy, copied);
  const stage = make("div"), says = make("div", { class: "wm-says wm-dim", "aria-live": "polite" });
  root.append(controls, stage);

  const along = (side, i) => side === 0 ? now.matrix[i] : now.matrix.map(row => row[i]);
  const visible = value => Math.abs(value) >= threshold * largest;

  function tokenButton(side, i) {
    const kind = now.kinds[side][i], token = now.tokens[side][i];
    const special = kind === "special" || kind === "prompt";
    const button = make("button", { type: "button", class: `wm-token${special ? " wm-special" : ""}`, "aria-pressed": "false",
      "aria-label": `${token}, ${signed(sums[side][i])} in total`, "data-side": side, "data-i": i,
      onmouseenter: () => light([side, i]), onfocus: () => light([side, i]), onmouseleave: () => light(pinned), onblur: () => light(pinned),
      onclick: () => { pinned = pinned && pinned.join() === `${side},${i}` ? null : [side, i]; light(pinned ?? [side, i]); },
      onkeydown: event => {
        const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
        if (event.key === "Escape") { pinned = null; light([side, i]); }
        if (!step) return;
        const to = side + step[0];
        if (to < 0 || to > 1) return;
        const there = buttons[to];
        there[Math.max(0, Math.min(there.length - 1, i + step[1]))].focus();
        event.preventDefault();
      } }, token);
    return button;
  }

  function draw() {
    now = levels[level];
    largest = largestOf(now.matrix);
    sums = [0, 1].map(side => now.tokens[side].map((_, i) => sum(along(side, i))));
    peak = largestOf(sums);
    buttons = [0, 1].map(side => now.tokens[side].map((_, i) => tokenButton(side, i)));
    texts = make("div", { class: "wm-texts" });
    svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("class", "wm-links");
    svg.setAttribute("aria-hidden", "true");
    [0, 1].forEach(side => {
      const box = make("div", { class: "wm-text", role: "group", "aria-label": side ? "Second text" : "First text", dir: "auto" });
      if (images[side]) box.append(picture(side)); else buttons[side].forEach(button => box.append(button, "​"));
      texts.append(box);
    });
    texts.append(svg);
    cells = now.matrix.map(row => row.map(value => make("td", {}, value.toFixed(3).replace("-", "−"))));
    heads = [now.tokens[0].map(token => make("th", { scope: "row" }, token)), now.tokens[1].map(token => make("th", { scope: "col" }, token))];
    const table = make("table", {}, make("caption", { class: "wm-dim" }, "Each cell is what one pair adds to the score."),
      make("thead", {}, make("tr", {}, make("td"), ...heads[1])),
      make("tbody", {}, ...cells.map((row, i) => make("tr", {}, heads[0][i], ...row))));
    stage.replaceChildren(texts, says, make("div", { class: "wm-scroll", tabindex: 0, role: "region", "aria-label": "All pairs" }, table));
    paint();
  }

  function picture(side) {
    const { image: [source, width, height], boxes } = images[side];
    const frame = make("div", { class: "wm-picture" }, make("img", { src: source, alt: "" }));
    buttons[side].forEach((button, i) => {
      const [left, top, right, bottom] = boxes[i];
      if (right <= left) return;
      Object.assign(button.style, { left: `${100 * left / width}%`, top: `${100 * top / height}%`,
        width: `${100 * (right - left) / width}%`, height: `${100 * (bottom - top) / height}%` });
      frame.append(button);
    });
    return frame;
  }

  const tint = (button, value, scale) => {
    const over = button.style.position === "absolute" || button.parentNode?.classList.contains("wm-picture");
    button.style.background = colour(value, scale, over ? .75 : 1);
    button.classList.toggle("wm-strong", !over && Math.abs(value) / scale > .6);
  };

  function paint() {
    cells.forEach((row, i) => row.forEach((cell, j) => {
      const value = now.matrix[i][j];
      cell.style.background = visible(value) ? colour(value, largest) : "none";
      cell.classList.toggle("wm-strong", visible(value) && Math.abs(value) / largest > .6);
      cell.classList.toggle("wm-faint", !visible(value));
    }));
    light(pinned);
  }

  function light(at) {
    root.querySelectorAll(".wm-on, .wm-mark").forEach(element => element.classList.remove("wm-on", "wm-mark"));
    buttons.forEach((side, s) => side.forEach((button, i) => button.setAttribute("aria-pressed", String(pinned !== null && pinned.join() === `${s},${i}`))));
    if (at === null) {
      buttons.forEach((side, s) => side.forEach((button, i) => tint(button, sums[s][i], peak)));
      const names = now.links.filter(([i, j]) => visible(now.matrix[i][j])).map(([i, j]) => `${now.tokens[0][i]} – ${now.tokens[1][j]}`);
      says.textContent = (names.length ? `Strongest links, ${Math.round(100 * now.share)} % of the score: ${names.slice(0, 6).join(", ")}. ` : "") +
        "Point at a token, or tab to it, to see what it matched; click to keep it.";
      return connect(now.links.map(([i, j]) => [i, j, true]));
    }
    const [side, i] = at, values = along(side, i);
    buttons[side].forEach((button, k) => k === i ? tint(button, sums[side][i], peak) : tint(button, 0, 1));
    buttons[1 - side].forEach((button, k) => tint(button, visible(values[k]) ? values[k] : 0, largest));
    buttons[side][i].classList.add("wm-on");
    heads[side][i].classList.add("wm-on");
    const order = values.map((value, k) => [value, k]).filter(([value]) => visible(value)).sort((x, y) => Math.abs(y[0]) - Math.abs(x[0]));
    values.forEach((_, k) => (side === 0 ? cells[i][k] : cells[k][i]).classList.add("wm-on"));
    if (order.length) {
      const best = order[0][1];
      (side === 0 ? cells[i][best] : cells[best][i]).classList.add("wm-mark");
      heads[1 - side][best].classList.add("wm-on");
      buttons[1 - side][best].classList.add("wm-on");
    }
    says.textContent = `${now.tokens[side][i]} ${signed(sums[side][i])} in total: ` +
      (order.slice(0, 6).map(([value, k]) => `${now.tokens[1 - side][k]} ${signed(value)}`).join(", ") || "no pair above the threshold");
    connect(order.slice(0, 12).map(([, k], place) => side === 0 ? [i, k, place === 0] : [k, i, place === 0]));
  }

  function connect(pairs) {
    svg.replaceChildren();
    const origin = texts.getBoundingClientRect();
    if (!origin.width) return;
    svg.setAttribute("viewBox", `0 0 ${origin.width} ${origin.height}`);
    for (const [i, j, strong] of pairs) {
      const value = now.matrix[i][j];
      if (!visible(value) || !value || !buttons[0][i].isConnected || !buttons[1][j].isConnected) continue;
      const a = buttons[0][i].getBoundingClientRect(), b = buttons[1][j].getBoundingClientRect();
      const x = a.left + a.width / 2 - origin.left, y = a.bottom - origin.top, u = b.left + b.width / 2 - origin.left, v = b.top - origin.top;
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", `M${x} ${y}C${x} ${y + (v - y) / 2} ${u} ${v - (v - y) / 2} ${u} ${v}`);
      path.style.stroke = `rgb(var(--${value < 0 ? "neg" : "pos"}))`;
      path.style.strokeWidth = (1 + 7 * Math.abs(value) / largest).toFixed(1);
      path.style.opacity = strong ? .85 : .4;
      if (value < 0) path.style.strokeDasharray = "5 4";
      svg.append(path);
    }
  }

  draw();
  new ResizeObserver(() => light(pinned)).observe(stage);
}
