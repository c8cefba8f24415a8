"""The web page's files over HTTP: types, ETags, caching, the content security policy, and no key
needed. usage: page_http.py EXECUTABLE"""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import Daemon, check, done

TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


def sent_as_on_disk(d, names):
    web = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../share/web")
    for name in names:
        r = d.get("/" if name == "index.html" else "/web/" + name)
        with open(os.path.join(web, name), "rb") as f:
            check(r.status == 200 and r.body == f.read(),
                  f"{name}: the answer is the file in share/web: {r.status}")
        wanted = TYPES.get(name.rsplit(".", 1)[1], "text/html; charset=utf-8")
        check(r.headers["content-type"] == wanted, f"{name}: {r.headers['content-type']}")
        check(r.headers["x-content-type-options"] == "nosniff", f"{name}: the answer has nosniff")
    print(f"{len(names)} files")


def asked_for_again(d):
    first = d.get("/web/main.js")
    tag = first.headers["etag"]
    check(re.fullmatch(r'"[0-9a-f]{32}"', tag), f"the ETag is a strong one: {tag}")
    check(first.headers["cache-control"] == "no-cache", f"caches must ask again: {first.headers}")
    for given in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        r = d.get("/web/main.js", {"If-None-Match": given})
        check(r.status == 304 and r.body == b"" and r.headers["etag"] == tag, f"{given}: {r.status}")
    check(d.get("/web/main.js", {"If-None-Match": '"x"'}).status == 200,
          "a request with another ETag gets the file")
    check(d.get("/web/style.css").headers["etag"] != tag, "each file has its own ETag")
    head = d.request("HEAD", "/")
    check(head.status == 200 and head.body == b"" and int(head.headers["content-length"]) > 500,
          "HEAD answers the length without the body")


def nothing_from_elsewhere(d):
    policy = d.get("/").headers["content-security-policy"]
    parts = dict(p.strip().split(" ", 1) for p in policy.split(";"))
    check(parts["default-src"] == "'none'" and parts["script-src"] == parts["style-src"] == parts["connect-src"] == "'self'",
          f"the policy allows only the daemon's own files: {policy}")
    check("unsafe" not in policy and "*" not in policy and "http" not in policy and "data:" not in policy, policy)
    html = d.get("/").body.decode()
    check(not re.search(r"<style|<script(?![^>]*src=)|style=|\son\w+=", html),
          "the page has no inline code or style")
    check(d.get("/info").headers["content-security-policy"] == "default-src 'none'",
          "other routes have the strict policy")


def files_that_are_not_there(d):
    for path in ("/web/", "/web/nope.js", "/web/index.html/", "/web/main.jsx", "/web/main.j", "/web/..%2fmain.js"):
        r = d.get(path)
        check(r.status in (400, 404) and r.error()["code"] in ("not_found", "invalid_request"), f"{path}: {r.status}")
        check("script-src" not in r.headers["content-security-policy"],
              f"{path}: an error has the strict policy, not the page's")
    check(d.get("/web/main.js?v=1").status == 200, "a query is ignored")
    check(d.request("POST", "/", "{}", {"Content-Type": "application/json"}).status == 405,
          "POST of the page is a 405")


with Daemon(sys.argv[1]) as daemon:
    found = re.findall(r'/web/([\w.-]+)"', daemon.get("/").body.decode())
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../share/web")
    check(set(found) <= set(os.listdir(folder)), f"every file that the page names exists: {found}")
    sent_as_on_disk(daemon, sorted(os.listdir(folder)))
    asked_for_again(daemon)
    nothing_from_elsewhere(daemon)
    files_that_are_not_there(daemon)
done()
