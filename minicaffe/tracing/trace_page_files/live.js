// Changes, if the page takes them: the prototxt, the photo, a dragged roi. Each is sent to the net, which runs again,
// and the page shows the new trace.

const CHANGES = "Edit the prototxt, drop a photo, or drag a roi of an ROI layer.";
const EDGE = 8; // pixels from a roi's edge in which a drag moves that edge; at most a quarter of the roi

/** Sends a change or a question and hands the answer to `take`; what comes while one is under way waits, and only the last. */
const sender = {
  busy: false,
  next: null,
  asked: null, // the last change without an answer
  async send(change, take = showAnswer) {
    if (take === showAnswer) sender.asked = change;
    if (sender.busy) {
      sender.next = [change, take];
      return;
    }
    sender.busy = true;
    document.getElementById("live-says").setAttribute("aria-busy", "true");
    say("running …");
    const answer = await answered(change);
    if (answer.error) say(answer.error, true);
    else take(answer, change);
    sender.busy = false;
    const {next} = sender;
    sender.next = null;
    if (next) return sender.send(...next);
    sender.asked = null;
    document.getElementById("live-says").removeAttribute("aria-busy");
  },
};

/** The worker in which Python runs, where no server does (live_server.py). */
let python = null;
let isLoading = false;

const STALLED = 60_000; // ms without a byte after which the network has failed

/** Send the worker a message; promise of its answer. loading: gets its reports before. */
const told = (message, loading) =>
  new Promise((resolve) => {
    python.onmessage = ({data}) => {
      const answer = JSON.parse(data);
      if ("loading" in answer) loading(answer);
      else resolve(answer);
    };
    python.onerror = (event) => resolve({error: event.message || "the browser does not start worker.js"});
    python.postMessage(message);
  });

async function startPython() {
  sender.busy = isLoading = true;
  tourNote();
  const error = await whyWithoutPython();
  isLoading = false;
  if (error) return withoutPython(error);
  say(`Ready. ${CHANGES}`);
  sender.busy = false;
  tourNote();
  const {next} = sender;
  if (next) sender.send(...next);
}

/** Load Python and show how much has come; why it does not run, "" if it does. */
async function whyWithoutPython() {
  if (location.protocol === "file:") return "the page is opened as a file, so serve its folder with python -m http.server";
  if (!window.WebAssembly) return "this browser has no WebAssembly";
  try {
    python = new Worker("worker.js");
  } catch (error) {
    return error.message;
  }
  const whole = trace.live.python.bytes;
  const bar = el("progress", {max: whole, value: 0, "aria-label": "Python is being loaded"});
  const count = quiet("");
  const line = el("p", {class: "row"}, bar, count);
  document.getElementById("live-says").after(line);
  let timer;
  const answer = await new Promise((resolve) => {
    const silent = () => resolve({error: `nothing has arrived for ${STALLED / 1000} seconds`});
    const loading = ({loading: part, bytes}) => {
      clearTimeout(timer);
      if (part) timer = setTimeout(silent, STALLED); // else all is there
      say(part ? `Python is being loaded: ${part} …` : "Python is there and runs the net …");
      bar.value = bytes;
      count.textContent = `${Math.round(bytes / 1e6)} of about ${Math.round(whole / 1e6)} MB`;
    };
    loading({loading: "Pyodide", bytes: 0});
    told(trace.live.python, loading).then(resolve);
  });
  clearTimeout(timer);
  line.remove();
  if (answer.error) python.terminate();
  return answer.error ?? "";
}

/** Make the page that of a trace, and say why, and how the reader can go on. */
function withoutPython(reason) {
  const {gallery} = trace.live.python;
  trace.live = null;
  document.getElementById("live").hidden = true;
  const other = gallery ? [", or see ", el("a", {class: "link", href: gallery}, "the gallery")] : [];
  const text = el(
    "p",
    {},
    `Python cannot run here (${reason}): this page shows the first pass and its tours, but you cannot change the net. `,
    "To change it, install minicaffe (",
    el("code", {}, "pip install -e ."),
    " in a clone of its repository) and run ",
    el("code", {class: "command", tabindex: 0}, commandText("live")),
    other,
    ".",
  );
  const banner = el("section", {id: "without-python", class: "notes", role: "alert"}, text);
  document.getElementById("timeline").before(banner);
  if (!guided.tour) banner.scrollIntoView({block: "nearest"});
  open(views[1], {...state}); // what asks Python gives way to commands
  if (guided.tour) openCard(guided.tour, guided.stop);
}

async function answered(wanted) {
  const change = {...wanted, shown: trace.live.shown};
  if (python) return told(change);
  try {
    const body = JSON.stringify(change);
    const reply = await fetch("change", {method: "POST", headers: {"Content-Type": "application/json"}, body});
    return reply.ok ? await reply.json() : {error: `refused: ${reply.status} ${reply.statusText}`};
  } catch {
    return {error: "no answer: is minicaffe live still running?"};
  }
}

function say(text, isError = false) {
  const line = document.getElementById("live-says");
  line.textContent = text;
  line.classList.toggle("loud", isError);
}

/** The trace of an answer: what it leaves out is as in the one that is shown. Tours are of the first pass. */
function completed({trace: found, arrays, kept, number, is_first: isFirst}) {
  referTo(fromBase64(arrays).buffer, found);
  Object.assign(trace.live, {shown: number, is_first: isFirst});
  const whole = (part) => [...trace[part].slice(0, kept[part]), ...found[part]];
  const {file, weights} = trace.net; // the worker knows its copies of the files
  const net = trace.live.python ? {...found.net, file, weights} : found.net;
  return {...trace, ...found, net, tours: trace.tours, layers: whole("layers"), steps: whole("steps")};
}

/** Show the trace of an answer, at the same layer and step. */
function showAnswer(answer, change) {
  const layer = trace.layers[state.layer]?.name;
  const kind = trace.steps[state.step]?.kind ?? "forward";
  const {view} = state;
  const panel = document.getElementById("panel");
  const top = panel.scrollTop;
  take(completed(answer));
  const found = trace.layers.findIndex((other) => other.name === layer);
  const place = found < 0 ? firstPlace() : {layer: found, step: stepFor(found, kind)};
  open("prototxt" in change ? null : views[1], {...place, view: resultKind() ? view : "layers"});
  setTimeout(() => (panel.scrollTop = top)); // after the inspector has drawn
  if (answer.is_first) {
    document.querySelector("#live textarea").value = answer.prototxt;
    guided.since = performance.now(); // the tour's target is drawn anew
  }
  say(answer.ran);
  tourNote();
}

function liveView(root) {
  if (trace.live.python) queueMicrotask(startPython);
  root.hidden = false;
  const gallery = trace.live.python?.gallery;
  if (gallery) document.querySelector(".actions").prepend(el("a", {class: "link", href: gallery}, "Gallery"));
  const text = el("textarea", {spellcheck: "false", rows: 12, "aria-label": `The prototxt, ${trace.live.file}`});
  text.value = trace.live.prototxt;
  const run = () => sender.send({prototxt: text.value});
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  });
  const edit = (prototxt) => {
    text.value = prototxt;
    run();
  };
  const label = "A photo or a prototxt";
  const accept = "image/*,.prototxt,.pt";
  const file = el("input", {type: "file", accept, "aria-label": label, onchange: () => takeFile(file.files[0], edit)});
  const area = el("label", {class: "drop"}, el("strong", {}, "Drop a photo or a prototxt here"), quiet("or choose a file"), file);
  root.append(
    area,
    el("p", {id: "live-says", class: "quiet", role: "status"}, CHANGES),
    el(
      "details",
      {open: innerWidth > 820}, // on a phone the net comes first
      el("summary", {}, "The prototxt"),
      text,
      el("div", {class: "row"}, el("button", {type: "button", onclick: run}, "Run"), quiet("Ctrl+Enter")),
    ),
  );
  const mark = (isOver) => (event) => {
    event.preventDefault();
    area.classList.toggle("over", isOver);
  };
  document.addEventListener("dragover", mark(true));
  document.addEventListener("dragleave", mark(false));
  document.addEventListener("drop", (event) => {
    mark(false)(event);
    takeFile(event.dataTransfer.files[0], edit);
  });
}

/** Take a file that was dropped anywhere or chosen: a prototxt by its name, else a photo. */
function takeFile(file, edit) {
  if (!file || !trace.live) return;
  const isText = /\.(prototxt|pt|pbtxt)$/i.test(file.name);
  const reader = new FileReader();
  const photo = () => sender.send({photo: reader.result.split(",")[1] ?? ""});
  reader.addEventListener("load", () => (isText ? edit(reader.result) : photo()));
  reader.addEventListener("error", () => say(`${file.name}: cannot be read`, true));
  if (isText) reader.readAsText(file);
  else reader.readAsDataURL(file);
}

/** Let the chosen roi be dragged on the image: its edges where the mouse is near one, else all of it. */
function dragsRoi(view, layer, arrays, state) {
  if (!trace.live) return;
  view.frame.style.touchAction = "none";
  const asked = () => sender.asked?.layer === layer.name && sender.asked.roi === state.r && sender.asked.box;
  const corners = () => asked() || [...row(arrays.rois, state.r)].slice(1);
  keysMove(view.frame, corners, (box) => sender.send({layer: layer.name, roi: state.r, box}));
  view.frame.addEventListener("pointerdown", (down) => {
    const scale = imageScale();
    const [, ...box] = row(arrays.rois, state.r);
    const from = view.at(down).map((v) => v * scale);
    const grain = view.grain() * scale; // pixels of the net's input in one of the screen
    const reach = [0, 1].map((i) => Math.min(EDGE * grain, (box[i + 2] - box[i]) / 4));
    const near = box.map((edge, i) => Math.abs(from[i % 2] - edge) < reach[i % 2]);
    const inside = [0, 1].every((i) => box[i] - reach[i] < from[i] && from[i] < box[i + 2] + reach[i]);
    if (!inside) return;
    down.preventDefault();
    const moved = near.some(Boolean) ? near : [true, true, true, true];
    const listening = new AbortController();
    let still = true;
    const move = (event) => {
      const by = [(event.clientX - down.clientX) * grain, (event.clientY - down.clientY) * grain];
      if (still && Math.hypot(...by) < 3 * grain) return; // a click
      still = false;
      sender.send({layer: layer.name, roi: state.r, box: box.map((v, i) => (moved[i] ? v + by[i % 2] : v))});
    };
    const {signal} = listening;
    window.addEventListener("pointermove", move, {signal});
    for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, () => listening.abort(), {signal});
    window.addEventListener("click", (event) => !still && event.stopPropagation(), {capture: true, once: true});
  });
}
