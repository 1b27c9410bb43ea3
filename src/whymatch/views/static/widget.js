// The view as a notebook's widget: its state is the model's, which Python reads and sets.
export default {
  render({ model, el }) {
    const { create } = wm;
    const style = create("style", {}, model.get("style")), section = create("section"), status = create("div", { class: "wm-dim", role: "status" });
    const box = create("div", { class: "wm-body" }), root = el.attachShadow({ mode: "open" }); // notebooks have styles of their own
    let view = null, drawing = false;
    const same = (x, y) => JSON.stringify(x) === JSON.stringify(y);
    const tell = (name, value) => {
      if (drawing || same(model.get(name), value)) return;
      model.set(name, value);
      model.save_changes();
    };
    function draw() {
      drawing = true; // what a new view says of itself is not what its reader did
      view = whymatchView(section, model.get("data"), { notify: tell });
      view.show(model.get("level"));
      view.pin(model.get("pinned"));
      drawing = false;
    }
    if (model.get("layers") > 0) box.append(asking());
    box.append(status, section);
    root.append(style, box);
    draw();
    model.on("change:data", draw);
    model.on("change:level", () => view.show(model.get("level")));
    model.on("change:pinned", () => view.pin(model.get("pinned")));
    model.on("change:hovered", () => view.hover(model.get("hovered")));
    const report = () => { status.textContent = model.get("error") || (model.get("busy") ? "Explaining…" : ""); section.style.opacity = model.get("busy") ? .4 : 1; };
    model.on("change:busy", report);
    model.on("change:error", report);

    // Two texts and a layer, which Python explains.
    function asking() {
      const fields = [0, 1].map(i => create("input", { type: "text", value: model.get("texts")[i], "aria-label": i ? "Second text" : "First text" }));
      const layer = create("input", { type: "range", min: 0, max: model.get("layers"), value: model.get("layer"), "aria-label": "Layer" }), shown = create("output", {}, String(model.get("layer")));
      const ask = () => tell("texts", fields.map(field => field.value));
      fields.forEach(field => field.addEventListener("keydown", event => { event.stopPropagation(); if (event.key === "Enter") ask(); }));
      layer.addEventListener("input", () => { shown.textContent = layer.value; });
      layer.addEventListener("change", () => tell("layer", Number(layer.value)));
      model.on("change:layer", () => { layer.value = model.get("layer"); shown.textContent = String(model.get("layer")); });
      model.on("change:texts", () => fields.forEach((field, i) => { field.value = model.get("texts")[i]; }));
      return create("div", { class: "wm-controls wm-ask" }, ...fields, create("button", { type: "button", class: "wm-plain", onclick: ask }, "Explain"),
        create("label", {}, "layer", layer, shown, ` of ${model.get("layers")}`));
    }
  },
};
