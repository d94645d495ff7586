"use strict";

const input = document.getElementById("files");
const drop = document.getElementById("drop");
const state = document.getElementById("state");
const key = document.getElementById("key");
const results = document.getElementById("results");

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

/** A label with its probability in front of a bar of that length. */
function row({ label, probability }) {
  const made = element("div", undefined, "row");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  bar.setAttribute("width", `${(100 * probability).toFixed(1)}%`);
  bar.setAttribute("height", "100%");
  svg.setAttribute("aria-hidden", "true");
  svg.append(bar);
  made.append(svg, element("span", label), element("span", `${(100 * probability).toFixed(1)} %`));
  return made;
}

function card(file, result) {
  const made = element("article");
  const picture = element("img");
  picture.alt = "";
  picture.src = URL.createObjectURL(file);
  picture.onload = picture.onerror = () => URL.revokeObjectURL(picture.src);
  const text = element("div");
  text.append(element("h2", file.name || "pasted picture"));
  if (result.status === "ok") text.append(...result.predictions.map(row));
  else text.append(element("p", result.error.message, "problem"));
  made.append(picture, text);
  return made;
}

async function classify(files) {
  if (!files.length) return;
  const form = new FormData();
  for (const file of files) form.append("files", file, file.name || "pasted");
  state.textContent = `Classifying ${files.length} …`;
  try {
    const own = key.querySelector("input").value.trim();  // kept nowhere else
    const headers = own ? { Authorization: `Bearer ${own}` } : {};
    const answer = await fetch("/v1/classify", { method: "POST", body: form, headers });
    if (answer.status === 401) key.hidden = false;
    const body = await answer.json();
    const outcomes = body.results || [];
    results.prepend(...outcomes.map((result, i) => card(files[i], result)));
    state.textContent = answer.ok
      ? `${outcomes.length} answered by ${body.model.name} in ${body.timings_ms.total.toFixed(0)} ms.`
      : `${body.title}: ${body.detail}`;
  } catch (error) {
    state.textContent = "The gateway did not answer.";
  }
}

input.addEventListener("change", () => { classify([...input.files]); input.value = ""; });
for (const name of ["dragenter", "dragover"])
  drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
for (const name of ["dragleave", "drop"])
  drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.remove("over"); });
drop.addEventListener("drop", (event) => classify([...event.dataTransfer.files]));
document.addEventListener("paste", (event) => classify([...event.clipboardData.files]));
