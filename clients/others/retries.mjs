// got, axios with axios-retry, and undici's RetryAgent.
import { readFileSync } from "node:fs";
import axios from "axios";
import axiosRetry from "axios-retry";
import got from "got";
import { Agent, RetryAgent, request } from "undici";

const url = JSON.parse(readFileSync(0, "utf8")).url + "/v1/charges";
const statusCodes = [502, 503, 504];
const axiosClient = axios.create({ proxy: false });
axiosRetry(axiosClient, { retries: 5, retryDelay: () => 100, retryCondition: (error) => axiosRetry.isNetworkError(error) || statusCodes.includes(error.response?.status) });
const agent = new RetryAgent(new Agent(), { methods: ["POST"], statusCodes, minTimeout: 100, maxRetries: 5 });
const stacks = {
  got: async (body, headers) => (await got.post(url, { body, headers, retry: { limit: 5, methods: ["POST"], statusCodes } })).statusCode,
  "axios + axios-retry": async (body, headers) => (await axiosClient.post(url, body, { headers })).status,
  "undici RetryAgent": async (body, headers) => {
    const answer = await request(url, { method: "POST", body, headers, dispatcher: agent });
    await answer.body.dump();
    return answer.statusCode;
  },
};
for (const [client, send] of Object.entries(stacks)) {
  for (const mode of ["ok", "busy", "cut"]) {
    let status;
    try {
      status = await send(`mode=${mode}&by=${client}`, { "idempotency-key": `${client.split(" ")[0]}-${mode}`, "content-type": "text/plain" });
    } catch (error) {
      status = String(error);
    }
    console.log(JSON.stringify({ client, case: `${mode}: answered`, ok: status === 200, note: String(status) }));
  }
}
process.exit(0);
