// Which page this is, by its address.
import { byId } from "./dom.js";
import { ClientPage } from "./client.js";
import { Overview } from "./overview.js";

const query = new URLSearchParams(location.search);
const client = query.get("client");
if (client === null) new Overview(byId("view"));
else new ClientPage(byId("view"), query.get("run"), client);
