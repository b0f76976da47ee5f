// The dialog for uploading an ECG, and files dropped anywhere on the page.

import * as api from "./api.js";
import { $, sentence } from "./dom.js";
import { ask } from "./unit_question.js";

const LIMIT = 32 * 2 ** 20;
let waiting = []; // files whose sampling rate was asked for

export function listen(app) {
  const dialog = $("upload");
  $("open-upload").addEventListener("click", () => open(dialog));
  $("files").addEventListener("change", (event) => { send(app, dialog, [...event.target.files]); event.target.value = ""; });
  $("rate").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault(); // which would close the dialog
    if ($("rate").value) send(app, dialog, waiting);
  });
  for (const name of ["dragenter", "dragover"]) {
    window.addEventListener(name, (event) => {
      if (!event.dataTransfer?.types.includes("Files") || !app.session?.uploads) return;
      event.preventDefault();
      open(dialog);
      $("drop").classList.add("on");
    });
  }
  window.addEventListener("dragleave", () => $("drop").classList.remove("on"));
  window.addEventListener("drop", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    $("drop").classList.remove("on");
    if (app.session?.uploads) { open(dialog); send(app, dialog, [...event.dataTransfer.files]); }
  });
}

function open(dialog) {
  if (dialog.open) return;
  $("unit-question").hidden = true;
  $("upload-error").hidden = true;
  waiting = [];
  dialog.showModal();
}

async function send(app, dialog, files, said = { unit: $("unit").value }) {
  if (!files.length) return;
  $("unit-question").hidden = true;
  const problem = $("upload-error"), busy = $("upload-busy");
  problem.hidden = true;
  busy.hidden = false;
  try {
    if (files.reduce((sum, file) => sum + file.size, 0) > LIMIT) throw new Error("The files are larger than 32 MiB. Upload one recording at a time.");
    const made = await api.upload(files, $("rate").value, said);
    waiting = [];
    dialog.close();
    app.showUpload(made.code);
  } catch (error) {
    if (error.unitQuestion) {
      ask($("unit-question"), error.unitQuestion, (answer) => send(app, dialog, files, { ...answer, confirmed: true }));
      return;
    }
    problem.textContent = error.rateQuestion ? "The file does not say its sampling rate. Type it above, in Hz, and press Enter." : sentence(error.message);
    problem.hidden = false;
    if (error.rateQuestion) { waiting = files; $("rate").focus(); }
  } finally {
    busy.hidden = true;
  }
}
