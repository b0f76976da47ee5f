// The address bar holds the selection, so that a link opens the same view.

export function read() {
  const query = new URLSearchParams(location.search);
  const code = (name, digits) => (new RegExp(`^[0-9a-f]{${digits}}$`).test(query.get(name) ?? "") ? query.get(name) : null);
  const one = (name, known) => (known.includes(query.get(name)) ? query.get(name) : known[0]); // the first by default
  const lasso = (query.get("lasso") ?? "").split(";").map((pair) => pair.split(",").map(Number)).filter((p) => p.length === 2 && p.every(Number.isFinite));
  const hidden = query.getAll("hide").map((word) => [word.slice(0, word.indexOf(":")), word.slice(word.indexOf(":") + 1)]);
  const broken = ["patient", "upload", "with"].find((name) => query.get(name) && !code(name, name === "upload" ? 16 : 10));
  return {
    broken: broken ? `This link is damaged: ${broken}=${query.get(broken).slice(0, 40)} is no ${broken === "upload" ? "upload" : "patient"}’s code` : null,
    patient: code("patient", 10), upload: code("upload", 16), other: code("with", 10),
    number: Math.max(0, Math.min(99999, Number.parseInt(query.get("recording") ?? "0", 10) || 0)),
    layout: one("layout", ["clinical", "stacked", "beat"]), gain: Number(one("gain", ["10", "5", "20"])), speed: Number(one("speed", ["25", "50"])),
    overlay: query.has("overlay"),
    color: query.get("color") ?? "labels", lasso: lasso.length > 2 ? lasso : null, hidden, tab: query.get("tab") ?? query.get("room") ?? (query.has("report") ? "results" : null), cohort: query.get("cohort")?.slice(0, 60) || null,
    on: /^(pca|umap|e\d{1,3})$/.test(query.get("on") ?? "") ? query.get("on") : null, // the map that the lasso was drawn on
    beside: Number(/^\d{1,3}$/.exec(query.get("beside") ?? "0")), // the encoder of a second map
    search: (query.get("find") ?? "").slice(0, 500), bars: query.has("histograms"), contours: query.has("contours"), naming: query.has("names") ? query.get("names") !== "off" : null,
  };
}

export function write(state, off, push) {
  const query = new URLSearchParams();
  if (state.patient) query.set("patient", state.patient);
  if (state.upload) query.set("upload", state.upload);
  if (state.other) query.set("with", state.other);
  if (state.number) query.set("recording", state.number);
  if (state.overlay) query.set("overlay", "");
  if (state.layout !== "clinical") query.set("layout", state.layout);
  if (state.gain !== 10) query.set("gain", state.gain);
  if (state.speed !== 25) query.set("speed", state.speed);
  if (state.color !== "labels") query.set("color", state.color);
  if (state.lasso) query.set("lasso", state.lasso.map((p) => p.join(",")).join(";"));
  if (state.lasso && state.on) query.set("on", state.on);
  if (state.beside) query.set("beside", state.beside);
  if (state.tab) query.set("tab", state.tab);
  if (state.cohort) query.set("cohort", state.cohort);
  if (state.search) query.set("find", state.search);
  if (state.bars) query.set("histograms", "");
  if (state.contours) query.set("contours", "");
  if (state.naming !== null) query.set("names", state.naming ? "on" : "off");
  for (const [field, values] of Object.entries(off)) for (const value of values) query.append("hide", `${field}:${value}`);
  const text = query.toString(), address = text ? `/?${text}` : "/";
  if (address === location.pathname + location.search) return;
  history[push ? "pushState" : "replaceState"](null, "", address);
}
