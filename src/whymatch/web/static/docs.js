"use strict";
// The OpenAPI description as a page, without a script from elsewhere.
fetch("/openapi.json").then(response => response.json()).then(api => {
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, one] of Object.entries(methods)) {
      const title = document.createElement("h2"), says = document.createElement("p"), body = document.createElement("pre");
      title.textContent = `${method.toUpperCase()} ${path}`;
      says.textContent = one.summary ?? "";
      const reference = one.requestBody?.content?.["application/json"]?.schema?.$ref;
      const schema = reference && api.components.schemas[reference.split("/").pop()];
      if (schema) {
        const required = schema.required ?? [];
        body.textContent = Object.entries(schema.properties).map(([name, field]) =>
          `${name}${required.includes(name) ? "" : "?"}: ${field.type ?? (field.anyOf ?? []).map(any => any.type).join(" | ")}` +
          (field.description ? `   ${field.description}` : "")).join("\n");
      }
      document.getElementById("paths").append(title, says, ...(schema ? [body] : []));
    }
  }
});
