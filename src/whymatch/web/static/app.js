"use strict";
(() => {
  const $ = id => document.getElementById(id);
  const examples = {
    "negation": { a: "The coffee is not good.", b: "This is bad coffee." },
    "paraphrase": { a: "A man is slicing bread in the kitchen.", b: "Someone cuts a loaf of bread at home." },
    "same words, other meaning": { a: "The dog bit the man.", b: "The man bit the dog." },
    "search": { mode: "rank", a: "how do I cancel my ticket?", b: "You can return a train ticket until one day before departure.\nOur office is open from nine to five.\nTickets for children are half price.\nTo get your money back, cancel the booking in the app." },
  };
  let models = [], running = null;

  const mode = () => document.querySelector("input[name=mode]:checked").value;
  const model = () => models.find(one => one.name === $("model").value) ?? models[0];

  function named() {
    const rank = mode() === "rank";
    $("name-a").textContent = rank ? "Query" : "First text";
    $("name-b").textContent = rank ? "Documents, one on each line" : "Second text";
    $("b").rows = rank ? 6 : 2;
  }

  function showLayer() {
    const layer = Number($("layer").value), last = model()?.layers ?? 1;
    $("layer-shown").textContent = layer === 0 ? "0, input" : layer === last ? `${layer}, output` : String(layer);
  }

  function chooseModel() {
    $("layer").max = model().layers;
    $("layer").value = model().layer;
    showLayer();
  }

  // The state lives behind the #, which no server and no log ever sees.
  const state = () => new URLSearchParams({ mode: mode(), a: $("a").value, b: $("b").value, model: $("model").value, layer: $("layer").value });
  function restore() {
    const saved = new URLSearchParams(location.hash.slice(1));
    if (!saved.has("a")) return false;
    const radio = document.querySelector(`input[name=mode][value="${saved.get("mode") === "rank" ? "rank" : "pair"}"]`);
    radio.checked = true;
    $("a").value = saved.get("a");
    $("b").value = saved.get("b") ?? "";
    if (models.some(one => one.name === saved.get("model"))) $("model").value = saved.get("model");
    chooseModel();
    if (/^\d+$/.test(saved.get("layer") ?? "")) $("layer").value = saved.get("layer");
    showLayer(); named();
    return $("a").value !== "" && $("b").value !== "";
  }

  async function post(path, body, signal) {
    const response = await fetch(path, { method: "POST", signal, body: JSON.stringify(body),
      headers: { "Content-Type": "application/json", "Accept": "application/x-ndjson" } });
    if (!response.ok) {
      const told = await response.json().catch(() => ({}));
      throw new Error(told.error ?? `the server answered ${response.status}`);
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
        const told = JSON.parse(line);
        if (told.error) throw new Error(told.error);
        if (told.result) return told.result;
        if (typeof told.progress === "number") $("progress").value = told.progress;
      }
    }
  }

  function panel(data) {
    const section = document.createElement("section");
    section.className = "panel";
    if (!$("compare").checked) $("results").replaceChildren();
    while ($("results").children.length > 2) $("results").firstChild.remove();
    $("results").append(section);
    whymatchView(section, data);
  }

  function hits(found) {
    $("results").replaceChildren(...found.hits.map(hit => {
      const box = document.createElement("details"), line = document.createElement("summary"), view = document.createElement("section");
      box.className = "hit";
      const largest = Math.max(1e-9, ...hit.answers.map(answer => Math.abs(answer.value)));
      const text = hit.explanation.text_b;
      line.append(`${hit.rank}. ${hit.score.toFixed(4)}  `);
      // Offsets count characters, where JavaScript counts the halves of some.
      const letters = [...text];
      let end = 0;
      for (const answer of [...hit.answers].sort((x, y) => x.span[0] - y.span[0])) {
        const [low, high] = answer.span, mark = document.createElement("mark");
        line.append(letters.slice(end, low).join(""));
        mark.textContent = letters.slice(low, high).join("");
        mark.style.background = `rgba(var(--${answer.value < 0 ? "neg" : "pos"}), ${(Math.abs(answer.value) / largest).toFixed(2)})`;
        mark.title = `${answer.value.toFixed(3)}, answers “${answer.query_word}”`;
        line.append(mark);
        end = high;
      }
      line.append(letters.slice(end).join(""));
      const told = document.createElement("div");
      told.className = "wm-dim";
      told.textContent = hit.answers.slice(0, 4).map(a => `${a.word} ← ${a.query_word} ${a.value.toFixed(3)}`).join(", ");
      line.append(told);
      box.append(line, view);
      box.addEventListener("toggle", () => { if (box.open && !view.hasChildNodes()) whymatchView(view, hit.explanation); });
      return box;
    }));
  }

  async function run() {
    running?.abort();
    const mine = running = new AbortController(), started = performance.now();
    $("error").textContent = "";
    $("progress").hidden = false;
    $("progress").removeAttribute("value");
    $("stop").hidden = false;
    $("status").textContent = "Explaining…";
    history.replaceState(null, "", "#" + state());
    const common = { model: $("model").value, layer: Number($("layer").value) };
    try {
      if (mode() === "rank") {
        const documents = $("b").value.split("\n").filter(line => line.trim());
        hits(await post("/api/rank", { query: $("a").value, documents, ...common }, mine.signal));
      } else panel(await post("/api/explain", { text_a: $("a").value, text_b: $("b").value, ...common }, mine.signal));
      $("status").textContent = `Done in ${((performance.now() - started) / 1000).toFixed(1)} s.`;
    } catch (error) {
      $("status").textContent = error.name === "AbortError" ? "Stopped." : "";
      if (error.name !== "AbortError") $("error").textContent = error.message;
    } finally {
      if (running === mine) { $("progress").hidden = true; $("stop").hidden = true; }
    }
  }

  $("form").addEventListener("submit", event => { event.preventDefault(); run(); });
  $("stop").addEventListener("click", () => running?.abort());
  $("modes").addEventListener("change", named);
  $("model").addEventListener("change", chooseModel);
  $("layer").addEventListener("input", showLayer);
  window.addEventListener("hashchange", () => { if (restore()) run(); });
  for (const [name, example] of Object.entries(examples)) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", () => {
      document.querySelector(`input[name=mode][value="${example.mode ?? "pair"}"]`).checked = true;
      named();
      $("a").value = example.a;
      $("b").value = example.b;
      run();
    });
    $("examples").append(button);
  }
  fetch("/api/models").then(response => response.json()).then(found => {
    models = found;
    $("model").replaceChildren(...models.map(one => new Option(one.name, one.name)));
    chooseModel();
    if (restore()) run();
    document.body.dataset.ready = "yes";
  }).catch(() => { $("error").textContent = "the server does not answer"; });
})();
