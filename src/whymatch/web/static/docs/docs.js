"use strict";
// Shows the OpenAPI description, without a script from elsewhere.
document.getElementById("curl").textContent = `curl -s ${location.origin}/api/explain -H 'content-type: application/json' -d '{"text_a": "The coffee is not good.", "text_b": "This is bad coffee."}'`;
fetch("/openapi.json").then(response => response.json()).then(api => {
  const nameOf = field => field.$ref?.split("/").pop();
  const typeOf = field => nameOf(field) ?? (field.anyOf ? field.anyOf.map(typeOf).join(" | ") : field.enum ? field.enum.map(each => JSON.stringify(each)).join(" | ") : field.const !== undefined ? JSON.stringify(field.const)
    : field.type === "array" ? (field.prefixItems ? `[${field.prefixItems.map(typeOf).join(", ")}]` : `[${typeOf(field.items ?? {})}, …]`) : field.type ?? "any");
  const add = (name, text) => {
    const element = document.createElement(name);
    element.textContent = text;
    document.getElementById("paths").append(element);
    return element;
  };
  const fieldsOf = ({ properties = {}, required = [] }) => Object.entries(properties).map(([name, field]) =>
    `${name}${required.includes(name) ? "" : "?"}: ${typeOf(field)}` + (field.description ? `   ${field.description}` : "")).join("\n");
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      add("h2", `${method.toUpperCase()} ${path}`);
      add("p", operation.summary ?? "");
      const body = operation.requestBody?.content?.["application/json"]?.schema, answer = operation.responses?.["200"]?.content?.["application/json"]?.schema;
      if (body) { add("h3", `Request: ${typeOf(body)}`); add("pre", fieldsOf(api.components.schemas[nameOf(body)])); }
      if (answer && Object.keys(answer).length) {
        add("h3", `Answer: ${typeOf(answer)}`);
        const name = nameOf(answer) ?? nameOf(answer.items ?? {});
        if (name) add("pre", fieldsOf(api.components.schemas[name]));
      }
    }
  }
  add("h2", "The parts of requests and answers");
  const shown = new Set(Object.values(api.paths).flatMap(methods => Object.values(methods)).flatMap(operation => [operation.requestBody?.content?.["application/json"]?.schema, operation.responses?.["200"]?.content?.["application/json"]?.schema]).filter(Boolean).map(schema => nameOf(schema) ?? nameOf(schema.items ?? {})));
  for (const [name, schema] of Object.entries(api.components.schemas)) {
    if (shown.has(name)) continue;
    add("h3", name);
    add("pre", fieldsOf(schema));
  }
});
