"""Runs an OpenAPI validator on GET /openapi.json. usage: openapi_valid.py EXECUTABLE"""
import os
import subprocess
import sys
import tempfile

from openapi_spec_validator import OpenAPIV31SpecValidator

from daemon import Daemon, check, done

EXECUTABLE = sys.argv[1]


def errors(document):
    return [f"{'/'.join(map(str, e.absolute_path))}: {e.message[:200]}"
            for e in OpenAPIV31SpecValidator(document).iter_errors()]


with tempfile.TemporaryDirectory() as work:
    key = subprocess.run([EXECUTABLE, "key", "a", "--api-keys", f"{work}/keys"], capture_output=True,
                         text=True).stdout.strip()
    for extra, headers in (([], {}), (["--api-keys", f"{work}/keys"], {"Authorization": f"Bearer {key}"})):
        with Daemon(EXECUTABLE, extra=extra) as d:
            r = d.get("/openapi.json", headers)
            document = r.json()
            wrong = errors(document)
            check(r.status == 200 and not wrong, f"{wrong}")
            operations = [operation for path in document["paths"].values() for operation in path.values()]
            names = [operation["operationId"] for operation in operations]
            check(len(set(names)) == len(names) > 20, f"{len(names)} operations, each with its own name")
            check(bool(document.get("security")) == bool(extra),
                  "the document says whether an API key is needed")
            check(document["paths"]["/health"]["get"].get("security") == ([] if extra else None),
                  "the document says that /health needs no key")
            for path in ("/generate", "/v1/images/generations"):
                body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
                check("API key that may" in body["schema"]["properties"]["priority"]["description"],
                      f"{path}: the description says which keys allow a priority above 0")
            print(f"{len(names)} operations, {len(wrong)} errors")
            document["paths"]["/health"]["get"]["responses"] = {"twohundred": {"about": 1}}
            check(errors(document), "the validator finds the planted error")
done()
