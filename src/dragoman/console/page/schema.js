// Forms from JSON Schemas: typed inputs for the input of a skill, and for the answer to a question.

import { dict, h, line, list } from "./dom.js";
import { filePart } from "./parts.js";

const MAX_DEPTH = 5;
const MAX_FIELDS = 100;

/** Follows a local `$ref`, and takes the one real type of an optional. */
function resolve(schema, root, hops = 0) {
  if (!schema || typeof schema !== "object" || hops > 10) return {};
  if (typeof schema.$ref === "string" && schema.$ref.startsWith("#/")) {
    let found = root;
    for (const step of schema.$ref.slice(2).split("/")) found = Object.hasOwn(found ?? {}, step) ? found[step] : undefined;
    const { $ref: _, ...rest } = schema;
    return { ...resolve(found, root, hops + 1), ...rest };
  }
  for (const word of ["anyOf", "oneOf"]) {
    if (!Array.isArray(schema[word])) continue;
    const real = schema[word].filter((s) => s?.type !== "null");
    const { [word]: _, ...rest } = schema;
    if (real.every((s) => s && "const" in s)) return { ...rest, enum: real.map((s) => s.const) };
    if (real.length === 1) return { ...resolve(real[0], root, hops + 1), ...rest };
  }
  if (Array.isArray(schema.allOf) && schema.allOf.length === 1) {
    const { allOf, ...rest } = schema;
    return { ...resolve(allOf[0], root, hops + 1), ...rest };
  }
  if (Array.isArray(schema.type)) return { ...schema, type: schema.type.find((t) => t !== "null") };
  return schema;
}

const SKILL_SCHEMAS = "urn:dragoman:extension:skill-schemas:v1";
const QUESTIONS = "urn:dragoman:extension:questions:v1";

/** What the skills of a card take and return, by their ids: {id: {input, output}}. */
export function skillSchemas(card) {
  const found = list(dict(dict(card).capabilities).extensions).map(dict).find((e) => e.uri === SKILL_SCHEMAS);
  return dict(dict(found?.params).skills);
}

const TYPES = ["object", "string", "number", "integer", "boolean", "array"];
const isSchema = (value) => (Object.keys(dict(value)).length && (value.properties || Array.isArray(value.enum) || Array.isArray(value.anyOf) || value.$ref || TYPES.includes(value.type)) ? value : null);

/** The questions of a message: [{key, text, schema, approval}]. A schema may also be where other agents put theirs. */
export function questionsIn(message) {
  const metadata = dict(dict(message).metadata);
  const asked = list(dict(metadata[QUESTIONS]).questions).map(dict);
  if (asked.length) return asked.map((q) => ({ key: String(q.key ?? ""), text: String(q.text ?? ""), schema: isSchema(q.schema), approval: q.approval === true }));
  for (const name of ["schema", "inputSchema", "responseSchema"]) if (isSchema(metadata[name])) return [{ key: "", text: "", schema: metadata[name] }];
  for (const part of list(dict(message).parts)) {
    const data = dict(dict(part).data);
    const schema = isSchema(data.schema) || isSchema(data.form) || (data.properties ? isSchema(data) : null);
    if (schema) return [{ key: "", text: "", schema }];
  }
  return [];
}

/** Several questions as one object. */
export function schemaOfAll(questions) {
  return { type: "object", properties: Object.fromEntries(questions.map((q) => [q.key, { ...(q.schema || { type: "string" }), title: line(q.text, 200) || q.key }])), required: questions.filter((q) => !q.approval && dict(q.schema).type !== "boolean").map((q) => q.key) };
}

export const isYesNo = (schema) => resolve(schema, schema).type === "boolean";
export const isFile = (schema) => schema?.contentEncoding === "base64" || schema?.format === "binary" || schema?.format === "byte";

/** {node, read()}: `read()` gives {value, files}, or throws an Error that says what is missing. */
export function schemaForm(schema, { name = "value", initial } = {}) {
  const budget = { fields: MAX_FIELDS };
  const control = field(name, schema, { root: schema, depth: 0, required: true, budget, initial, top: true });
  return {
    node: h("div.form", {}, control.node),
    async read() {
      const files = [];
      const value = await control.read(files);
      return { value, files };
    },
  };
}

let next = 0;

function labelled(name, schema, input, { required, top }) {
  const id = `field-${++next}`;
  input.id = id;
  const hint = schema.description ? h("span.hint", { id: id + "-hint" }, line(schema.description, 400)) : null;
  if (hint) input.setAttribute("aria-describedby", hint.id);
  if (required) input.setAttribute("aria-required", "true");
  const title = top && !schema.title ? null : h("label", { for: id }, line(schema.title || name, 80), required ? h("span.star", { title: "required" }, " *") : null,
    h("span.type", {}, ` ${typeName(schema)}`));
  if (!title) input.setAttribute("aria-label", line(name, 80));
  return h("div.field", {}, title, input, hint);
}

function typeName(schema) {
  if (schema.enum) return "choice";
  if (isFile(schema)) return "file";
  return line([schema.type, schema.format].filter(Boolean).join(" · ") || "any", 40);
}

function field(name, given, context) {
  const { root, depth, required, budget, initial } = context;
  const schema = resolve(given, root);
  const start = initial !== undefined ? initial : schema.default;
  const missing = () => { throw new Error(`${line(name, 80)} is missing`); };
  if (budget.fields-- <= 0 || depth > MAX_DEPTH) return json(name, schema, context);
  if (schema.type === "object" && schema.properties && typeof schema.properties === "object") {
    const needed = new Set(Array.isArray(schema.required) ? schema.required : []);
    const inner = Object.entries(schema.properties).map(([key, s]) =>
      [key, field(key, s, { root, depth: depth + 1, required: needed.has(key), budget, initial: start?.[key] })]);
    const fields = inner.map(([, c]) => c.node);
    return {
      node: context.top ? h("div.fields", {}, fields) : h("fieldset.fields", {}, h("legend", {}, line(schema.title || name, 80)), fields),
      async read(files) {
        const value = {};
        for (const [key, control] of inner) {
          const v = await control.read(files);
          if (v !== undefined) value[key] = v;
        }
        return !required && !Object.keys(value).length ? undefined : value;
      },
    };
  }
  if (Array.isArray(schema.enum)) {
    const options = schema.enum.slice(0, 200);
    const input = h("select", {}, required ? null : h("option", { value: "" }, "–"), options.map((v, i) => h("option", { value: String(i + 1), selected: v === start }, line(String(v), 100))));
    return { node: labelled(name, schema, input, context), read: () => (input.value ? options[input.value - 1] : undefined) };
  }
  if (schema.const !== undefined) return { node: h("span"), read: () => schema.const };
  if (schema.type === "boolean") {
    const id = `field-${++next}`;
    const input = h("input", { type: "checkbox", id, checked: start === true });
    const node = h("div.field.check", {}, input, h("label", { for: id }, line(schema.title || name, 80)),
      schema.description ? h("span.hint", {}, line(schema.description, 400)) : null);
    return { node, read: () => (input.checked || required || start !== undefined ? input.checked : undefined) };
  }
  if (schema.type === "integer" || schema.type === "number") {
    const input = h("input", { type: "number", step: schema.type === "integer" ? "1" : "any", min: schema.minimum, max: schema.maximum, value: start ?? "" });
    return {
      node: labelled(name, schema, input, context),
      read() {
        if (input.value === "") return required ? missing() : undefined;
        const value = Number(input.value);
        if (!Number.isFinite(value) || (schema.type === "integer" && !Number.isInteger(value))) throw new Error(`${line(name, 80)} is not ${schema.type === "integer" ? "a whole number" : "a number"}`);
        return value;
      },
    };
  }
  if (isFile(schema)) {
    const input = h("input", { type: "file" });
    return {
      node: labelled(name, schema, input, context),
      async read(files) {
        if (!input.files.length) return required ? missing() : undefined;
        files.push(await filePart(input.files[0]));
        return undefined;
      },
    };
  }
  if (schema.type === "string") {
    const type = { date: "date", "date-time": "text", time: "time", email: "email", uri: "url" }[schema.format] || "text";
    const long = type === "text" && !(schema.maxLength < 200) && context.top;
    const input = long ? h("textarea", { rows: "2" }) : h("input", { type, maxlength: schema.maxLength, placeholder: schema.format === "date-time" ? "2030-01-31T12:00:00Z" : line(schema.examples?.[0] ?? "", 80) });
    input.value = start ?? "";
    return { node: labelled(name, schema, input, context), read: () => (input.value === "" ? (required ? missing() : undefined) : input.value) };
  }
  const items = schema.type === "array" ? resolve(schema.items, root) : null;
  if (items && ["string", "number", "integer"].includes(items.type) && !items.enum) {
    const input = h("textarea", { rows: "3", placeholder: "one per line" });
    input.value = Array.isArray(start) ? start.join("\n") : "";
    return {
      node: labelled(name, { ...schema, format: "one per line" }, input, context),
      read() {
        const rows = input.value.split("\n").map((r) => r.trim()).filter(Boolean);
        if (!rows.length) return required ? [] : undefined;
        return items.type === "string" ? rows : rows.map(Number);
      },
    };
  }
  return json(name, schema, context);
}

function json(name, schema, context) {
  const input = h("textarea.mono", { rows: "4", placeholder: "JSON", spellcheck: "false" });
  const start = context.initial !== undefined ? context.initial : schema.default;
  input.value = start === undefined ? "" : JSON.stringify(start, null, 2);
  return {
    node: labelled(name, { ...schema, type: schema.type || "JSON" }, input, context),
    read() {
      if (!input.value.trim()) { if (context.required) throw new Error(`${line(name, 80)} is missing`); return undefined; }
      try { return JSON.parse(input.value); } catch { throw new Error(`${line(name, 80)} is not JSON`); }
    },
  };
}
