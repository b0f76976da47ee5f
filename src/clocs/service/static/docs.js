// The API in words, from /openapi.json: what each endpoint is for, takes and returns.

import { $, make } from "./dom.js";

const typeOf = (schema, all) => {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const several = schema.anyOf ?? schema.oneOf;
  if (several) return several.map((one) => typeOf(one, all)).join(" or ");
  if (schema.type === "array") return `list of ${typeOf(schema.items, all)}`;
  return schema.enum ? schema.enum.join(" | ") : schema.format ?? schema.type ?? "any";
};

const plain = (text) => text.replaceAll("`", "");

const table = (rows) => make("table", {}, make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell))))));

// Every schema that a type leads to, with its fields.
function fieldsOf(schema, all, seen = new Set()) {
  if (!schema || typeof schema !== "object") return [];
  if (schema.$ref) {
    const name = schema.$ref.split("/").at(-1), own = all[name];
    if (seen.has(name)) return [];
    seen.add(name);
    const rows = Object.entries(own.properties ?? {}).map(([field, kind]) => [make("code", {}, field), typeOf(kind, all)]);
    return [make("p", {}, make("b", {}, name), own.description ? `: ${own.description}` : ""), table(rows), ...Object.values(own.properties ?? {}).flatMap((one) => fieldsOf(one, all, seen))];
  }
  return [...(schema.anyOf ?? []), ...(schema.oneOf ?? []), schema.items].flatMap((one) => fieldsOf(one, all, seen));
}

function endpoint(path, verb, one, { components: { schemas } }) {
  const bodies = Object.entries(one.requestBody?.content ?? {});
  const returned = one.responses["200"]?.content?.["application/json"]?.schema, example = bodies.find(([kind]) => kind === "application/json")?.[1].examples;
  const problems = Object.keys(one.responses).filter((status) => status !== "200");
  return make("details", { class: "panel", id: one.operationId },
    make("summary", {}, make("span", { class: "verb" }, verb.toUpperCase()), make("code", {}, path), make("span", { class: "quiet" }, one.description ?? one.summary)),
    one.security ? make("p", { class: "quiet" }, "Needs no token.") : null,
    one.parameters?.length ? make("h3", {}, "Parameters") : null,
    one.parameters?.length ? table(one.parameters.map((p) => [make("code", {}, p.name), p.in, typeOf(p.schema, schemas), plain(p.description ?? "")])) : null,
    bodies.length ? make("h3", {}, "Body, in one of these kinds") : null,
    bodies.length ? table(bodies.map(([kind, { examples }]) => [make("code", {}, kind), Object.values(examples ?? {}).map((each) => plain(each.summary ?? "")).filter(Boolean).join("; ")])) : null,
    example && make("pre", { tabindex: 0 }, JSON.stringify(example.one.value, (key, value) => (key === "signal" ? value.map((lead) => [...lead.slice(0, 4), "…"]) : value))),
    returned ? make("h3", {}, "Answer") : null, ...fieldsOf(returned, schemas),
    problems.length ? make("p", { class: "quiet" }, `On an error, ${problems.join(", ")}: {"message": …}.`) : null);
}

const THEME = matchMedia("(prefers-color-scheme: dark)");
document.documentElement.dataset.theme = THEME.matches ? "dark" : "light";
const api = await (await fetch("/openapi.json")).json();
$("summary").textContent = `API, version ${api.info.version}`;
const { token } = api.components.securitySchemes;
$("docs").replaceChildren(
  make("section", { class: "panel" }, make("h2", {}, api.info.title), make("p", {}, api.info.description),
    make("p", {}, "Send the token in the header ", make("code", {}, "Authorization: Bearer TOKEN"), `. ${plain(token.description)}`)),
  ...Object.entries(api.paths).flatMap(([path, verbs]) => Object.entries(verbs).map(([verb, one]) => endpoint(path, verb, one, api))));
document.documentElement.dataset.ready = "all";
