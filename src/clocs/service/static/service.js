// The page on which a person sends one ECG: its drawing, what the model makes of it, and the JSON.

import { $, make, save, sentence } from "./dom.js";
import { View, Viewer } from "./ecg.js";
import { EcgTools } from "./ecg_tools.js";
import { traces, unpack } from "./packing.js";
import { layoutFrom, layoutsOf } from "./paper.js";
import { ask } from "./unit_question.js";

const SHOWN = 12; // classes
const THEME = matchMedia("(prefers-color-scheme: dark)");
let models = [], last = null, shown = null;

async function post(path, { body, headers }) {
  const response = await fetch(path, { method: "POST", body, headers }).catch(() => null);
  if (!response) throw new Error("the service does not respond; is it still running?");
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw Object.assign(new Error(problem.message ?? `the service responded with status ${response.status}`), problem);
}

// What was sent: files with what the person said about them, or the example.
function request(sent) {
  if (sent.json) return { body: JSON.stringify(sent.json), headers: { "content-type": "application/json" } };
  const body = new FormData();
  for (const file of sent.files) body.append("files", file, file.name);
  for (const [name, value] of Object.entries({ rate: $("rate").value, ...sent.said })) if (value) body.append(name, value);
  return { body };
}

async function send(sent) {
  last = sent;
  $("problem").hidden = $("unit-question").hidden = true;
  $("busy").hidden = false;
  const model = models.find((one) => one.name === $("model").value);
  const task = model.kind === "classifier" ? "prediction" : "embedding";
  const path = `/models/${encodeURIComponent(model.name)}/${task}`;
  try {
    const [drawn, answer] = await Promise.all([post("/signal", request(sent)), post(path, request(sent))]);
    const made = await answer.json();
    draw(traces(unpack(await drawn.arrayBuffer())), model, made.results?.[0] ?? made, { path, made, sent });
  } catch (error) {
    $("result").replaceChildren(make("p", { class: "quiet" }, "No ECG is shown.")); // not the one before
    if (error.unit_question) {
      ask($("unit-question"), error.unit_question, (said) => send({ ...sent, said: { ...said, confirmed: "true" } }));
      return;
    }
    $("problem").textContent = error.rate_question ? "The file does not say its sampling rate. Type it above, in Hz, and press Enter." : sentence(error.message);
    $("problem").hidden = false;
    if (error.rate_question) $("rate").focus();
  } finally {
    $("busy").hidden = true;
  }
}

function draw(signal, model, result, about) {
  const canvas = make("canvas", { id: "ecg" }), scale = make("p", { class: "scale" });
  const paper = make("div", { class: "ecg" }, canvas), head = make("div", { class: "section-head" }, make("h3", {}, "ECG"), make("span", { class: "quiet" }, about.sent.files?.[0].name ?? "example"), make("span", { class: "spring" }));
  $("result").replaceChildren(head, paper, scale, ...(model.kind === "classifier" ? predicted(model, result) : embedded(result)), ...noted(result), ...json(about));
  const layouts = layoutsOf([signal], [null]);
  const view = new View({ layout: layoutFrom(layouts, "clinical") });
  const viewer = new Viewer(canvas, { signal }, view);
  const tools = new EcgTools(view, { layouts, remember: () => {}, picture: async () => save("ecg.png", await viewer.picture(model.name)) });
  head.append(tools.kinds);
  paper.before(tools.paper, tools.measured);
  view.addEventListener("change", () => scale.replaceChildren(...view.description().map((text) => make("span", {}, text))));
  view.set({});
  shown = view;
  $("result").focus({ preventScroll: true });
  if ($("result").getBoundingClientRect().top > 0.5 * window.innerHeight) $("result").scrollIntoView({ block: "start" });
}

function predicted({ name, card }, { probabilities, predicted: found, abstained }) {
  const likely = new Set([found ?? []].flat());
  const classes = Object.entries(probabilities).sort((a, b) => b[1] - a[1]).slice(0, SHOWN);
  return [
    make("div", { class: "section-head" }, make("h3", {}, `Predicted probability, ${name}`)),
    abstained && make("p", { class: "notice" }, `No prediction: ${abstained}.`),
    make("div", { class: "bars saved" }, ...classes.flatMap(([label, probability]) => {
      const fill = make("i"), mark = make("b"), threshold = card.thresholds?.[card.labels.indexOf(label)] ?? null;
      fill.style.width = `${100 * probability}%`;
      mark.style.left = `${100 * (threshold ?? 0)}%`;
      return [
        make("span", { title: card.meanings?.[label] }, label), make("span", { class: "track" }, fill, card.multilabel && threshold !== null && mark),
        make("span", { class: likely.has(label) ? "predicted" : "quiet" }, probability > 0 && probability < 0.01 ? "< 1 %" : `${Math.round(100 * probability)} %`)];
    })),
    make("p", { class: "fine" }, [...classes.filter(([label]) => (card.meanings?.[label] ?? label) !== label).map(([label]) => `${label}: ${card.meanings[label]}.`), "Not a diagnosis."].join(" ")),
  ].filter(Boolean);
}

const embedded = ({ embedding }) => [make("p", {}, `A vector of ${embedding.length} numbers, of length 1: see the JSON.`)];

const noted = ({ notes, leads_missing: missing }) => [...notes, missing.length && `without the leads ${missing.join(", ")}`].filter(Boolean).map((note) => make("p", { class: "notice" }, sentence(note)));

// The answer, and a command that gets it.
function json({ path, made, sent }) {
  const what = sent.json ? "-H 'Content-Type: application/json' -d @ecg.json" : sent.files.map((file) => `-F 'files=@${file.name.replaceAll("'", "'\\''")}'`).join(" ");
  return [
    make("div", { class: "section-head" }, make("h3", {}, "JSON")),
    make("pre", { id: "json", tabindex: 0 }, JSON.stringify(made, null, 2)),
    make("pre", { tabindex: 0 }, `curl -H "Authorization: Bearer $CLOCS_TOKEN" ${what} ${location.origin}${path}`),
  ];
}

function theme() {
  document.documentElement.dataset.theme = THEME.matches ? "dark" : "light";
  shown?.draw();
}

async function start() {
  theme();
  THEME.addEventListener("change", theme);
  const response = await fetch("/models"), facts = await response.json();
  if (!response.ok) throw new Error(facts.message);
  models = facts.models;
  $("summary").textContent = models.map((one) => one.name).join(" · ");
  $("model").replaceChildren(...models.map((one) => make("option", { value: one.name }, `${one.name} (${one.kind})`)));
  $("model").value = (models.find((one) => one.kind === "classifier") ?? models[0])?.name;
  $("model").addEventListener("change", () => { if (last) send(last); });
  $("files").addEventListener("change", (event) => { if (event.target.files.length) send({ files: [...event.target.files] }); event.target.value = ""; });
  $("rate").addEventListener("keydown", (event) => { if (event.key === "Enter" && last?.files) send({ files: last.files }); });
  $("example").addEventListener("click", async () => {
    const body = (await (await fetch("/openapi.json")).json()).paths["/models/{name}/embedding"].post.requestBody;
    const model = models.find((one) => one.name === $("model").value), example = body.content["application/json"].examples.one.value;
    send({ json: { ...example, leads: [model.leads.includes("II") ? "II" : model.leads[0]] } });
  });
  for (const name of ["dragenter", "dragover"]) window.addEventListener(name, (event) => { event.preventDefault(); $("drop").classList.add("on"); });
  window.addEventListener("dragleave", () => $("drop").classList.remove("on"));
  window.addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop").classList.remove("on");
    if (event.dataTransfer.files.length) send({ files: [...event.dataTransfer.files] });
  });
  document.documentElement.dataset.ready = "all";
}

start().catch((error) => {
  $("problem").textContent = sentence(error.message);
  $("problem").hidden = false;
});
