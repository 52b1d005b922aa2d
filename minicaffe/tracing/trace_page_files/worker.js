// Python in the browser: loads Pyodide and minicaffe, then answers changes as minicaffe live does.

const PARTS = {pyodide: "Pyodide", python: "Python's library", numpy: "NumPy", pillow: "Pillow", packages: "minicaffe", files: "the net"};
const OFTEN = 100; // ms between reports

let answer = null;

/** Report the bytes of what is fetched from now on; the returned function ends that. */
function reportFetches() {
  const plain = self.fetch;
  let bytes = 0;
  let reported = -OFTEN;
  const report = (loading) => postMessage(JSON.stringify({loading, bytes}));
  self.fetch = async (...given) => {
    const reply = await plain(...given);
    if (!reply.body || !self.TransformStream) return reply;
    const word = new URL(reply.url).pathname.split("/").pop().split(/[^a-z]/)[0];
    const transform = (chunk, controller) => {
      bytes += chunk.length;
      controller.enqueue(chunk);
      if (performance.now() - reported < OFTEN) return;
      reported = performance.now();
      report(PARTS[word] ?? word);
    };
    return new Response(reply.body.pipeThrough(new TransformStream({transform})), reply);
  };
  return () => {
    self.fetch = plain;
    report("");
  };
}

async function fetched(name) {
  const reply = await fetch(name);
  if (!reply.ok) throw new Error(`${name}: ${reply.status} ${reply.statusText}`);
  return reply.arrayBuffer();
}

async function withPackages(base) {
  try {
    importScripts(`${base}pyodide.js`);
  } catch {
    throw new Error(`${base}pyodide.js cannot be loaded: is there a network?`);
  }
  const pyodide = await loadPyodide({indexURL: base});
  await pyodide.loadPackage(["numpy", "pillow"]);
  return pyodide;
}

async function start({pyodide: base, options}) {
  const end = reportFetches();
  const [pyodide, packages, files] = await Promise.all([withPackages(base), fetched("packages.zip"), fetched("files.zip")]);
  end();
  pyodide.unpackArchive(packages, "zip", {extractDir: "/packages"});
  pyodide.unpackArchive(files, "zip", {extractDir: "/files"});
  pyodide.runPython('import sys, os; sys.path.insert(0, "/packages"); os.chdir("/files")');
  answer = pyodide.pyimport("minicaffe.cli.live").in_browser(JSON.stringify(options));
}

onmessage = async ({data}) => {
  try {
    if (answer === null) {
      await start(data);
      postMessage('{"ran": "ready"}');
    } else postMessage(answer(JSON.stringify(data)));
  } catch (error) {
    postMessage(JSON.stringify({error: String(error.message ?? error).trim().split("\n").at(-1)}));
  }
};
