"""The events of a streamed generation, read line by line as HTML's section 9.2 says."""
import http.client
import json


class Event:
    def __init__(self, kind, data):
        self.kind, self.data = kind, data

    def json(self):
        return json.loads(self.data)


class Stream:
    """A POST whose answer is events; `status` of any other answer, with its `body`."""

    def __init__(self, daemon, fields, path="/generate", headers=None, timeout=60):
        self.connection = http.client.HTTPConnection(daemon.host, daemon.port, timeout=timeout)
        self.connection.request("POST", path, json.dumps(fields),
                                {"Content-Type": "application/json", **(headers or {})})
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.headers = {k.lower(): v for k, v in self.response.getheaders()}
        self.comments, self.ids = 0, 0
        self.streams = self.headers["content-type"] == "text/event-stream"
        self.body = None if self.streams else self.response.read()

    def next(self):
        """The next event; None once the stream has ended."""
        kind, data = "message", []
        while True:
            line = self.response.readline()
            if not line.endswith(b"\n"):
                return None
            line = line.decode().rstrip("\r\n")
            if not line:
                if data:
                    return Event(kind, "\n".join(data))
                kind = "message"
                continue
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "":
                self.comments += 1
            elif name == "event":
                kind = value
            elif name == "data":
                data.append(value)
            elif name == "id":
                self.ids += 1

    def __iter__(self):
        while (event := self.next()) is not None:
            yield event

    def until(self, kind):
        """The next event of this kind, whatever comes before it; None: it never comes."""
        for event in self:
            if event.kind == kind:
                return event
        return None

    def close(self):
        self.connection.close()
        self.response.close()
