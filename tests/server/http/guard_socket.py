"""How the real daemon answers raw bytes: one row for each malformed request that libmicrohttpd
0.9.75 accepts, and for the other ways of reaching a server on the loopback address. usage:
guard_socket.py EXECUTABLE"""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done, exchange, generate_bytes, read_responses, wait_until  # noqa: E402

H = b"Host: localhost\r\n"
J = b"Content-Type: application/json\r\n"
SMUGGLED = b"GET /health HTTP/1.1\r\n" + H + b"\r\n"


def post(headers, body=b""):
    return b"POST /generate HTTP/1.1\r\n" + headers + b"\r\n" + body


def get(target, headers=H):
    return b"GET " + target + b" HTTP/1.1\r\n" + headers + b"\r\n"


DROPPED = 0  # closed without an answer
# Requests that the library itself refuses, with its own HTML, before we see them.
BY_THE_LIBRARY = ["no version", "a version to come",
                  "a header without a colon", "a NUL in a name", "a space after the version",
                  "headers of 300 KB"]

# what, bytes, status, whether the connection must close
ROWS = [
    ("a plain GET", get(b"/health"), 200, False),
    ("length and chunks, with a request smuggled behind",
     post(H + J + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\nX") + SMUGGLED,
     400, True),
    ("chunks and length, the other way round",
     post(H + J + b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", b"0\r\n\r\nX") + SMUGGLED,
     400, True),
    ("two lengths", post(H + J + b"Content-Length: 5\r\nContent-Length: 0\r\n", b"AAAAA") + SMUGGLED,
     400, True),
    ("gzip, chunked", post(H + J + b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), 501, True),
    ("chunked alone", post(H + J + b"Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n"), 411,
     True),
    ("no Host", get(b"/health", b"Accept: */*\r\n"), 400, True),
    ("no Host, HTTP/1.0", b"GET /health HTTP/1.0\r\n\r\n", 400, True),
    ("two Hosts", get(b"/health", H + H), 400, True),
    ("bare LF line ends", b"GET /health HTTP/1.1\nHost: localhost\n\n", 400, True),
    ("a bare LF after the request line", b"GET /health HTTP/1.1\nHost: localhost\r\n\r\n", 400, True),
    ("a bare LF after a header", get(b"/health", b"X: a\n" + H), 400, True),
    ("a bare LF after the last header", b"GET /health HTTP/1.1\r\nHost: localhost\n\r\n", 400, True),
    ("a bare LF for an empty line", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\n", 400, True),
    ("a bare CR in a value", get(b"/health", H + b"X: a\rb\r\n"), 400, True),
    ("a bare CR before the line end", get(b"/health", H + b"X: a\r\r\n"), 400, True),
    ("a name of two words", get(b"/health", H + b"X Y: foo\r\n"), 400, True),
    ("no name", get(b"/health", H + b": foo\r\n"), 400, True),
    ("a name that is no token", get(b"/health", H + b"X(): foo\r\n"), 400, True),
    ("a space before the colon, after a length",
     post(H + J + b"Content-Length: 2\r\nTransfer-Encoding : chunked\r\n", b"{}"), 400, True),
    ("a NUL in Host", get(b"/health", b"Host: localhost\0.evil\r\n"), 400, True),
    ("two NULs in Host", get(b"/health", b"Host: localhost\0\0evil: x\r\n"), 400, True),
    ("NULs at the end of Host", get(b"/health", b"Host: localhost\0\0\r\n"), 400, True),
    ("a NUL in a name", get(b"/health", H + b"X\0Y: a\r\n"), 400, True),
    ("a control character in a value", get(b"/health", H + b"X: a\x1bb\r\n"), 400, True),
    ("letters of other alphabets in a value", get(b"/health", H + b"X: \xe9\xc3\xa9\r\n"), 200, False),
    ("a value with tabs and spaces", get(b"/health", b"Host: \t localhost \t\r\nX:\t\r\nY:\r\n"), 200,
     False),
    ("a method that is no token", b"G\rET /health HTTP/1.1\r\n" + H + b"\r\n", 400, True),
    ("two spaces in the request line", b"GET  /health HTTP/1.1\r\n" + H + b"\r\n", 400, True),
    ("a space after the version", b"GET /health HTTP/1.1 \r\n" + H + b"\r\n", 400, True),
    ("a compressed body", post(H + J + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n", b"{}"), 415,
     True),
    ("a body that says it is not compressed",
     post(H + J + b"Content-Encoding: identity\r\nContent-Length: 2\r\n", b"{}"), 400, False),
    ("two sites in one", get(b"/health", H + b"Sec-Fetch-Site: cross-site, none\r\n"), 403, True),
    ("a site of no kind", get(b"/health", H + b"Sec-Fetch-Site: \r\n"), 403, True),
    ("a query", get(b"/health?a=b&c=d?e"), 200, False),
    ("a NUL in a query", get(b"/health?a\0b"), 400, True),
    ("a long target", get(b"/" + b"a" * 40000), 414, True),
    ("headers of 40 KB", get(b"/health", H + b"X: " + b"y" * 40000 + b"\r\n"), 431, True),
    ("NUL escaped in the target", get(b"/health%00g"), 400, True),
    ("raw NUL in the target", get(b"/health\0g"), 400, True),
    ("raw NUL at the end of the target", get(b"/health\0"), 400, True),
    ("slash escaped in the target", get(b"/health%2fready"), 404, False),
    ("dot dot", get(b"/x/../health"), 400, True),
    ("dot dot escaped", get(b"/x/%2e%2e/health"), 400, True),
    ("control escaped", get(b"/health%0d%0aX:y"), 400, True),
    ("tab in the target", get(b"/health\tx"), 400, True),
    ("a negative length", post(H + J + b"Content-Length: -1\r\n"), 400, True),
    ("a length with a plus", post(H + J + b"Content-Length: +2\r\n", b"{}"), 400, True),
    ("a length in hex", post(H + J + b"Content-Length: 0x2\r\n", b"{}"), 400, True),
    ("a length of nothing", post(H + J + b"Content-Length:\r\n"), 400, True),
    ("two lengths in one", post(H + J + b"Content-Length: 2, 2\r\n", b"{}"), 400, True),
    ("a length of two words", post(H + J + b"Content-Length: 1 0\r\n", b"{}"), 400, True),
    ("a length of 64 bits and more", post(H + J + b"Content-Length: 99999999999999999999\r\n"),
     413, True),
    ("headers of 80 KB", get(b"/health", H + b"X: " + b"y" * 80000 + b"\r\n"), 431, True),
    ("headers of 300 KB", get(b"/health", H + b"X: " + b"y" * 300000 + b"\r\n"), 431, True),
    ("a header without a colon", get(b"/health", H + b"foo\r\n"), 400, True),
    ("no length", post(H + J), 411, True),
    ("too large, known before the body", post(H + J + b"Content-Length: 33554433\r\n"), 413, True),
    ("GET with a body", get(b"/health", H + b"Content-Length: 5\r\n") + b"AAAAA" + SMUGGLED, 400,
     True),
    ("a method of no route, with a body", b"TRACE /health HTTP/1.1\r\n" + H + b"Content-Length: 5\r\n\r\nAAAAA", 405,
     False),
    ("rebinding", get(b"/health", b"Host: evil.example\r\n"), 403, True),
    ("rebinding with our port", get(b"/health", b"Host: evil.example:8188\r\n"), 403, True),
    ("a Host that begins like ours", get(b"/health", b"Host: localhost.evil.example\r\n"), 403, True),
    ("upper case and a final dot", get(b"/health", b"Host: LOCALHOST.:1\r\n"), 200, False),
    ("another site's page", get(b"/health", H + b"Origin: https://evil.example\r\n"), 403, True),
    ("a sandboxed page", get(b"/health", H + b"Origin: null\r\n"), 403, True),
    ("our own page", get(b"/health", H + b"Origin: http://localhost\r\n"), 200, False),
    ("an image tag of another site", get(b"/health", H + b"Sec-Fetch-Site: cross-site\r\n"), 403,
     True),
    ("a form", post(H + b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 2\r\n",
                    b"{}"), 415, False),
    ("a form with files", post(H + b"Content-Type: multipart/form-data; boundary=x\r\n"
                               b"Content-Length: 2\r\n", b"{}"), 415, False),
    ("text", post(H + b"Content-Type: text/plain\r\nContent-Length: 2\r\n", b"{}"), 415, False),
    ("no type", post(H + b"Content-Length: 2\r\n", b"{}"), 415, False),
    ("two types", post(H + J + b"Content-Type: text/plain\r\nContent-Length: 2\r\n", b"{}"), 400, True),
    ("a preflight of another site",
     b"OPTIONS /generate HTTP/1.1\r\n" + H + b"Origin: https://evil.example\r\n"
     b"Access-Control-Request-Method: POST\r\n\r\n", 403, True),
    ("a request id with spaces", get(b"/health", H + b"X-Request-Id: a b\r\n"), 400, True),
    ("a NUL in a request id", get(b"/health", H + b"X-Request-Id: a\0b\r\n"), 400, True),
    ("an absolute target", get(b"http://localhost/health"), 400, True),
    ("an authority", b"CONNECT localhost:80 HTTP/1.1\r\n" + H + b"\r\n", 400, True),
    ("no version", b"GET /health\r\n" + H + b"\r\n", 400, True),
    ("a version to come", b"GET /health HTTP/9.9\r\n" + H + b"\r\n", None, True),
    ("a space in the target", get(b"/heal th"), 400, True),
    ("nothing but a method", b"GET\r\n\r\n", DROPPED, True),
    ("a folded header", get(b"/health", H + b"X: a\r\n b\r\n"), 400, True),
    ("a space before the colon", get(b"/health", b"Host : localhost\r\n"), 400, True),
]



def check_lengths(d, folder):
    """Clients send invalid lengths while other clients' heads are incomplete. Each client gets
    exactly its own answer, in the form of its path's API. Each refused request has a line in
    the access log."""
    waiting = [d.connect() for _ in range(40)]
    for i, s in enumerate(waiting):
        s.sendall(b"GET /health HTTP/1.1\r\n" + H + b"X-Request-Id: waits-%d\r\n" % i)
    wrong = [d.connect() for _ in range(60)]
    paths = [b"/generate", b"/v1/images/generations", b"/sdapi/v1/txt2img", b"/nothing?a=b&c=d"]
    status, own = [400, 400, 422, 400], ["allowed", "type", "detail", "allowed"]
    for i, s in enumerate(wrong):
        s.sendall(b"POST " + paths[i % 4] + b" HTTP/1.1\r\n" + H + b"X-Request-Id: wrong-%d\r\n" % i)
    for s in wrong:
        s.sendall(J + b"Content-Length: +7\r\n\r\n" + SMUGGLED)
    for i, s in enumerate(wrong):
        responses, closed = read_responses(s, close=True)
        check(len(responses) == 1 and closed, f"wrong-{i}: {len(responses)} answers, closed: {closed}")
        for r in responses:
            check(r.status == status[i % 4] and r.headers.get("x-request-id") == f"wrong-{i}",
                  f"wrong-{i}: {r.status} {r.headers}")
            error = r.json() if i % 4 == 2 else r.error()
            check("Content-Length" in str(error) and "+7" in str(error) and own[i % 4] in error, f"wrong-{i}: {r.body}")
    for i, s in enumerate(waiting):
        s.sendall(b"\r\n")
        responses, _ = read_responses(s)
        check([(r.status, r.headers["x-request-id"]) for r in responses] == [(200, f"waits-{i}")],
              f"waits-{i}: {[(r.status, r.headers) for r in responses]}")
    exchange(d, get(b"/health", H + b"foo\r\n"), close=True)

    def read():
        with open(folder + "/log") as f:
            return [json.loads(line) for line in f.read().split("\n") if line]
    wait_until(lambda: len(read()) >= 101)  # 60, 40 and one more; written when connections end
    lines = read()
    logged = {line["id"]: (line["target"], line["status"]) for line in lines if line["id"].startswith("wrong-")}
    wanted = {f"wrong-{i}": (paths[i % 4].decode(), status[i % 4]) for i in range(60)}
    check(logged == wanted, f"the access log: {logged}")
    others = [(line["target"], line["status"]) for line in lines if line["id"] == ""]
    check(others == [("/health", 400)], f"refused by the library: {others}")
    print(f"60 wrong lengths beside 40 heads that wait, {len(logged)} lines in the access log")


with tempfile.TemporaryDirectory() as folder, Daemon(sys.argv[1], extra=["--access-log", folder + "/log"]) as d:
    check_lengths(d, folder)
    for what, data, status, closes in ROWS:
        responses, closed = exchange(d, data, close=closes)
        statuses = [r.status for r in responses]
        if status == DROPPED:
            check(statuses == [], f"{what}: nothing is answered, not {statuses}")
        elif status is None:
            check(statuses == [] or statuses[0] in (200, 400, 413, 505), f"{what}: {statuses}")
        else:
            check(statuses == [status], f"{what}: {statuses}, not one {status}")
        library = what in BY_THE_LIBRARY
        for r in responses:
            is_json = r.headers.get("content-type") == "application/json"
            check(is_json != library, f"{what}: {'HTML' if library else 'JSON'}, not {r.headers}")
        check(closed == closes, f"{what}: the connection is {'' if closed else 'not '}closed")
        if responses and responses[0].headers.get("content-type") == "application/json":
            headers = responses[0].headers
            check(headers.get("x-content-type-options") == "nosniff",
                  f"{what}: the answer has nosniff")
            check(not any(h.startswith("access-control-") for h in headers),
                  f"{what}: no CORS headers")
            if status and status >= 400:
                check(responses[0].error()["message"], f"{what}: the error has a message")
    check(exchange(d, generate_bytes({"prompt": "a"}))[0][0].status == 200,
          "the daemon draws after all of these")
    print(f"{len(ROWS)} raw requests")
done()
