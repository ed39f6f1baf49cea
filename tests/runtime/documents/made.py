"""Documents of each kind, written byte by byte or by Python's own archives."""

import io
import zipfile

PAGE = (
    b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Contents %d 0 R "
    b"/Resources << /Font << /F 3 0 R >> >> >>"
)
CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
)
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="xml" ContentType="application/xml"/></Types>'
)
RELATIONS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="r" Target="word/document.xml" Type="http://schemas.openxmlformats.org/'
    'officeDocument/2006/relationships/officeDocument"/></Relationships>'
)


def pdf(*pages: str) -> bytes:
    """A PDF file with a line on each page; "" leaves one empty, as in a scan."""
    n = len(pages)
    kids = b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(n))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, n),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, line in enumerate(pages):
        drawn = b"BT /F 12 Tf 20 200 Td (%s) Tj ET" % line.encode() if line else b""
        objects.append(PAGE % (5 + 2 * i))
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn))
    data, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(places) + 1, table)
    trailer = b"trailer\n<< /Size %d /Root 1 0 R >>\n" % (len(places) + 1)
    return bytes(data) + head + trailer + b"startxref\n%d\n%%%%EOF\n" % len(data)


def zipped(members: dict[str, str]) -> bytes:
    """A compressed zip file, but for a member `mimetype`."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            how = zipfile.ZIP_STORED if name == "mimetype" else zipfile.ZIP_DEFLATED
            archive.writestr(name, content, how)
    return data.getvalue()


def word(*paragraphs: str, extra: str = "") -> bytes:
    """A Word file."""
    body = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs)
    document = f'<w:document xmlns:w="{W}"><w:body>{body}{extra}</w:body></w:document>'
    return zipped(
        {"[Content_Types].xml": TYPES, "_rels/.rels": RELATIONS, "word/document.xml": document}
    )


def epub(*chapters: str, locked: bool = False) -> bytes:
    """An EPUB book whose manifest lists the chapters backwards. locked: with copy protection."""
    items = [
        f'<item id="c{i}" href="text/c%20{i}.xhtml" media-type="application/xhtml+xml"/>'
        for i in range(len(chapters))
    ]
    spine = "".join(f'<itemref idref="c{i}"/>' for i in range(len(chapters)))
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf"><manifest>'
        f"{''.join(reversed(items))}</manifest><spine>{spine}</spine></package>"
    )
    members = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": package,
    }
    if locked:
        members["META-INF/encryption.xml"] = (
            '<e:encryption xmlns:e="x"><e:CipherReference URI="OEBPS/text/c%200.xhtml"/>'
            "</e:encryption>"
        )
    for i, text in enumerate(chapters):
        members[f"OEBPS/text/c {i}.xhtml"] = (
            '<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title>no'
            f"</title></head><body><h2>{i}</h2><p>{text}</p></body></html>"
        )
    return zipped(members)
