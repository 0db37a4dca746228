// Signs and verifies cards with @a2a-js/sdk; see a2a_sdk_1_signing.py.
//
// The card is handed over as JSON: from its own AgentCard objects the library loses `securitySchemes` on the way.

import { generateAgentCardSignature, verifyAgentCardSignature } from "@a2a-js/sdk";
import { importJWK } from "jose";
import { readFileSync } from "node:fs";

const asked = JSON.parse(readFileSync(0, "utf8"));

async function sign() {
  const { kid, alg } = asked.key;
  const signer = generateAgentCardSignature(await importJWK(asked.key, alg), { kid, alg, typ: "JOSE" });
  return signer(asked.card);
}

async function verify() {
  const keys = Object.fromEntries(asked.keys.keys.map((key) => [key.kid, key]));
  console.debug = () => {};
  try {
    await verifyAgentCardSignature((kid) => importJWK(keys[kid], keys[kid].alg))(asked.card);
    return { ok: true };
  } catch (error) {
    return { ok: false, why: String(error) };
  }
}

console.log(JSON.stringify(await { sign, verify }[process.argv[2]]()));
