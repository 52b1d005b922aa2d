// Questions of a tour: the card takes an answer, or reads it from the page, and says why it is right or wrong.

const answers = new Map(); // by question: {given, verdict: "right", "wrong" or "shown", text}

const ANY_KIND = {
  number: "Type a number.",
  choice: "Choose one of the answers.",
  detection: "Choose a detection: click it, or its line in the list.",
  roi: "Choose a roi with its slider, or click one.",
  channel: "Choose a channel with its slider.",
  bin: "Choose a bin: click it, or use the arrow keys on the output.",
  cell: "Choose a cell of a map: click it, or use the arrow keys on the maps.",
  label: "Choose an anchor or a roi: click the image.",
  anchor: "Choose a roi or a detection: its way back has the anchor.",
  "score threshold": "Move the slider of the lowest score.",
  "nms threshold": "Move the slider of the NMS threshold.",
  "dragged roi": "Drag the roi on the image, or type its corners.",
};

const valueOf = (selector) => document.querySelector(selector)?.value;

/** The number in the name of the first step back, such as "roi 5", that is shown in the panel. */
function numberInWay(word) {
  const step = document.querySelector(`#panel .walk [data-step^="${word} "]`);
  return step ? [Number(step.dataset.step.slice(word.length + 1))] : null;
}

const inPercent = (label) => {
  const value = valueOf(`#panel .result input[aria-label="${label}, in percent"]`);
  return value === undefined ? null : [value / 100];
};

const chosenCell = ({blob}) => {
  const card = [...document.querySelectorAll("#panel [data-blob]")].find((each) => each.dataset.blob === blob);
  const cell = card?.querySelector(".tiles-view")?.dataset.chosen;
  return cell ? cell.split(",").map(Number) : null;
};

const hasInspector = ({layer}) => layer === trace.layers[state.layer].name && state.view === "layers" && chosen[layer];

/** What the reader has chosen on the page, by the kind of the answer: numbers, or null. */
const CHOSEN = {
  detection: () => (state.view === "result" && state.detection !== null ? [state.detection] : null),
  roi: (ask) => numberInWay("roi") ?? (hasInspector(ask) ? [chosen[ask.layer].r] : null),
  channel: (ask) => (hasInspector(ask) ? [chosen[ask.layer].c] : chosenCell(ask)?.slice(0, 1)),
  bin: (ask) => (hasInspector(ask) ? [chosen[ask.layer].ph, chosen[ask.layer].pw] : null),
  cell: chosenCell,
  anchor: () => numberInWay("anchor"),
  label: () => {
    const label = document.querySelector("#panel .targets")?.dataset.label;
    return label ? [Number(label)] : null;
  },
  "score threshold": () => inPercent("Lowest score"),
  "nms threshold": () => inPercent("NMS threshold"),
  "dragged roi": draggedRoi,
};

/** The corners of the roi over the pools, or of the roi of a live page's inspector. */
function draggedRoi() {
  const typed = ["x1", "y1", "x2", "y2"].map((name) => valueOf(`#panel .pools input[aria-label="roi ${name}"]`));
  if (typed.every((value) => value !== undefined)) return typed.map(Number);
  const roi = document.querySelector("#panel .inspector .views svg > rect.chosen[data-roi]");
  if (!roi) return null;
  const [x, y, w, h] = ["x", "y", "width", "height"].map((name) => Number(roi.getAttribute(name)) * imageScale());
  return [x, y, x + w, y + h];
}

const PARTS = {cell: ["channel", "row", "column"], bin: ["bin row", "column"], "dragged roi": ["x1", "y1", "x2", "y2"]};

/** What is given, in words, without the parts that do not count. */
function chosenText({kind, answer}, given) {
  const texts = PARTS[kind]?.map((part, i) => (answer[i] === null ? null : `${part} ${number(given[i], 5)}`));
  if (texts) return texts.filter(Boolean).join(", ");
  return kind === "number" ? number(given[0]) : `${kind} ${number(given[0])}`;
}

const NUMBERED = ["detection", "roi", "anchor", "channel", "label"];

/** The right answer as the end of a sentence. */
function answerText({kind, written}) {
  if (kind === "choice") return `“${written}”${/[.!?]$/.test(written) ? "" : "."}`;
  return `${NUMBERED.includes(kind) ? `${kind} ` : ""}${written}.`;
}

/** How to give an answer. */
const promptOf = ({kind, blob}) => ANY_KIND[kind === "channel" && blob ? "cell" : kind];

/** Whether the given numbers are these; null stands for any. */
function answersTo({kind, tolerance}, given, wanted) {
  const close = 1e-6; // of a slider's hundredths
  if (kind.endsWith("threshold")) return wanted[0] - close <= given[0] && given[0] <= wanted[1] + close;
  return wanted.every((value, i) => value === null || Math.abs(given[i] - value) <= tolerance + Math.abs(value) * 1e-9);
}

/** A typed number, with a comma or a point, a true minus sign, a percent sign; NaN for another text. */
const typedNumber = (text) =>
  text.trim() === "" ? NaN : Number(text.trim().replace(/\s*%$/, "").replace(",", ".").replace("−", "-"));

/** The question of a stop; key: its place among the answers. follow() shows what is chosen on the page. */
function askView(ask, key) {
  const says = el("p", {class: "ask-says"});
  const verdict = el("div", {role: "status", class: "ask-verdict"}, says);
  const field = ANSWER_FIELDS[ask.kind]?.(ask, answers.get(key)?.given) ?? chosenField(ask);
  const show = () => {
    const {verdict: found, text} = answers.get(key) ?? {};
    verdict.dataset.verdict = found ?? "";
    const word = {right: "Right. ", wrong: "Not yet. ", shown: `The answer is ${answerText(ask)} `}[found];
    says.replaceChildren(...(word ? [el("strong", {}, word), text] : []));
    tell.disabled = found === "right" || found === "shown";
    if (word) verdict.scrollIntoView({block: "nearest"});
  };
  const check = (event) => {
    event.preventDefault();
    const given = field.given();
    if (!given) {
      verdict.dataset.verdict = "";
      return says.replaceChildren(promptOf(ask));
    }
    const isRight = answersTo(ask, given, ask.answer);
    const wrong = ask.wrong.find(({answer}) => !answer || answersTo(ask, given, answer));
    const words = ask.kind === "choice" ? ask.choices[given[0]] : chosenText(ask, given);
    const text = isRight ? ask.right : wrong.text.replaceAll("{given}", words);
    answers.set(key, {given, verdict: isRight ? "right" : "wrong", text});
    show();
  };
  const reveal = () => {
    answers.set(key, {...answers.get(key), verdict: "shown", text: ask.right});
    show();
    form.querySelector("[type=submit]").focus(); // the button is disabled now
  };
  const tell = el("button", {type: "button", onclick: reveal}, "Show the answer");
  const form = el(
    "form",
    {class: "tour-ask", "aria-label": "Question", onsubmit: check},
    el("p", {class: "ask-question"}, ask.question),
    field.element,
    el("div", {class: "row"}, el("button", {type: "submit"}, "Check"), tell),
    verdict,
  );
  show();
  return {element: form, follow: field.follow ?? (() => {})};
}

const ANSWER_FIELDS = {
  number: ({question}, given) => {
    const label = `Your answer: ${question}`;
    const input = el("input", {inputmode: "decimal", autocomplete: "off", value: given?.[0] ?? "", "aria-label": label});
    return {
      element: el("label", {class: "row ask-number"}, "Your answer", input),
      given: () => (Number.isFinite(typedNumber(input.value)) ? [typedNumber(input.value)] : null),
    };
  },
  choice: ({question, choices}, given) => {
    const inputs = choices.map((_, i) => el("input", {type: "radio", name: "ask-choice", value: i, checked: given?.[0] === i}));
    return {
      element: el(
        "fieldset",
        {class: "ask-choices"},
        el("legend", {}, question),
        choices.map((text, i) => el("label", {}, inputs[i], el("span", {}, text))),
      ),
      given: () => (inputs.some((input) => input.checked) ? [inputs.findIndex((input) => input.checked)] : null),
    };
  },
};

/** What is chosen on the page, in words. */
function chosenField(ask) {
  const words = el("p", {class: "ask-chosen", "aria-live": "polite"});
  const given = () => CHOSEN[ask.kind](ask) ?? null;
  const follow = () => {
    const now = given();
    const text = now ? `Chosen: ${chosenText(ask, now)}` : promptOf(ask);
    if (words.textContent !== text) words.textContent = text;
  };
  follow();
  return {element: words, given, follow};
}
