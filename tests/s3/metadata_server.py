"""A metadata service such as the hosts of containers and virtual machines have: it gives out the keys that it is started with.

`POST /` is STS, which gives credentials for a web identity token. `PUT /latest/api/token` and `GET /latest/meta-data/...` are those of an instance (IMDSv2), `GET /container` that of a container. `seen` has
every request, `tokens` the session tokens that were given. Tokens of containers are those in `container_tokens`,
web identity tokens those in `web_identities`. `roles` has the roles that were assumed,
`session_tokens` the header of each GET that the credentials of a role need.
"""

import datetime
import http.server
import json
import threading
import urllib.parse
import uuid

ROLE = "/latest/meta-data/iam/security-credentials/"


class Request(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body=""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_PUT(self):
        self.server.seen.append("PUT " + self.path)
        if self.server.is_silent:
            self.close_connection = True
            return
        if self.path != "/latest/api/token" or not self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "").isdigit():
            return self.answer(400)
        self.server.tokens.append(str(uuid.uuid4()))
        self.answer(200, self.server.tokens[-1])

    def do_POST(self):
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.seen.append("POST " + self.path)
        fields = dict(urllib.parse.parse_qsl(form))
        if self.server.failures:
            return self.answer(self.server.failures.pop())
        if fields.pop("WebIdentityToken") not in self.server.web_identities:
            return self.answer(400, "<ErrorResponse><Error><Code>InvalidIdentityToken</Code></Error></ErrorResponse>")
        self.server.roles.append(fields)
        result = "".join(f"<{name}>{value}</{name}>" for name, value in (
            ("AccessKeyId", self.server.access_key), ("SecretAccessKey", self.server.secret_key), ("SessionToken", self.server.session_token),
            ("Expiration", self.expiration())))
        self.answer(200, '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
                         f"<AssumeRoleWithWebIdentityResult><Credentials>{result}</Credentials></AssumeRoleWithWebIdentityResult>"
                         "</AssumeRoleWithWebIdentityResponse>")

    def do_GET(self):
        self.server.seen.append("GET " + self.path)
        self.server.session_tokens.append(self.headers.get("x-amz-security-token"))
        if self.server.failures:
            return self.answer(self.server.failures.pop())
        if self.path == "/container":
            known = self.headers.get("Authorization") in self.server.container_tokens
            return self.answer(200, self.credentials()) if known else self.answer(403)
        if self.headers.get("X-aws-ec2-metadata-token") not in self.server.tokens:
            return self.answer(401)
        if self.path == ROLE:
            return self.answer(200, "trainer\n")
        return self.answer(200, self.credentials()) if self.path == ROLE + "trainer" else self.answer(404)

    def expiration(self):
        return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def credentials(self):
        return json.dumps({"Code": "Success", "AccessKeyId": self.server.access_key, "SecretAccessKey": self.server.secret_key,
                           "Expiration": self.expiration()})

    def log_message(self, *_):
        pass


class RunsAsContext:
    """Of a server: serves on a thread of its own, from the beginning of the context to its end."""

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self.shutdown()
        self.server_close()


class MetadataServer(RunsAsContext, http.server.ThreadingHTTPServer):
    """Runs as a context. `failures`: the statuses of the next answers to GET. `is_silent`: PUT gets no answer."""

    def __init__(self, access_key, secret_key):
        super().__init__(("127.0.0.1", 0), Request)
        self.access_key, self.secret_key = access_key, secret_key
        self.is_silent = False
        self.session_token = ""
        self.roles, self.web_identities, self.session_tokens = [], [], []
        self.seen, self.tokens, self.container_tokens, self.failures = [], [], [], []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
