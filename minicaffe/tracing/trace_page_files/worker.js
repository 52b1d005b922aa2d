// Python in the browser: loads Pyodide and minicaffe, then answers changes as minicaffe live does.

let answer = null;

async function unpacked(pyodide, name) {
  const reply = await fetch(name);
  if (!reply.ok) throw new Error(`${name}: ${reply.status} ${reply.statusText}`);
  pyodide.unpackArchive(await reply.arrayBuffer(), "zip", {extractDir: `/${name.replace(".zip", "")}`});
}

async function start({pyodide: base, options}) {
  importScripts(`${base}pyodide.js`);
  const pyodide = await loadPyodide({indexURL: base});
  await pyodide.loadPackage(["numpy", "pillow"]);
  await Promise.all(["packages.zip", "files.zip"].map((name) => unpacked(pyodide, name)));
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
    postMessage(JSON.stringify({error: String(error.message ?? error)}));
  }
};
