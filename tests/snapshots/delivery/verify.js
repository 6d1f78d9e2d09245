// What a documented receiver does: it signs what JSON.stringify prints of the parsed body.
// Reads one {key, headers, body} (body in base64) per line; prints the number of each line that it would refuse.
const { createHmac } = require("node:crypto");
const lines = require("node:fs").readFileSync(0, "utf8").split("\n").filter(Boolean);
lines.forEach((line, number) => {
  const { key, headers, body } = JSON.parse(line);
  const text = Buffer.from(body, "base64").toString("utf8");
  const rebuilt = JSON.stringify(JSON.parse(text));
  const own = createHmac("sha256", key).update(`${headers["x-docora-timestamp"]}.${rebuilt}`).digest("hex");
  const signed = `${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${rebuilt}`;
  const standard = "v1," + createHmac("sha256", key).update(signed).digest("base64");
  const isRight =
    headers["x-docora-signature"] === `sha256=${own}` && headers["webhook-signature"].split(" ").includes(standard);
  if (!isRight) console.log(number);
});
