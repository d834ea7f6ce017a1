// Command gcs is fake-gcs-server, in memory, with the part of the XML API that it lacks and obstore uses.
//
// fake-gcs-server 1.56.1 compares generations in its JSON API (ifGenerationMatch). Of the XML API it has only listings, reads and
// deletes: it refuses a plain PUT ("invalid uploadType"), has no multipart uploads, and its errors have no XML codes. This program
// passes such requests to the JSON API and gives errors their codes. It checks no credentials, as fake-gcs-server does not either.
package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

// The host by which fake-gcs-server recognizes the XML API.
const xmlHost = "storage.googleapis.com"

// Buckets with this prefix ignore the conditions of writes.
const ignoring = "ignoring-"

type front struct {
	gcs     http.Handler
	mutex   sync.Mutex
	uploads map[string]map[int][]byte
}

func main() {
	address := flag.String("address", "127.0.0.1:0", "host and port")
	flag.Parse()
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{NoListener: true, PublicHost: xmlHost})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(*address, &front{gcs: server.HTTPHandler(), uploads: map[string]map[int][]byte{}}))
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/storage/v1/") {
		f.gcs.ServeHTTP(w, r)
		return
	}
	bucket, object, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if f.pass(http.MethodGet, "/storage/v1/b/"+bucket, nil, nil).Code != http.StatusOK {
		fail(w, http.StatusNotFound, "NoSuchBucket")
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		fail(w, http.StatusBadRequest, "IncompleteBody")
		return
	}
	query := r.URL.Query()
	id := query.Get("uploadId")
	switch {
	case object == "" && r.Method == http.MethodGet:
		answer := f.pass(http.MethodGet, "/"+bucket+"?"+r.URL.RawQuery, nil, nil)
		relay(w, answer, "")
	case r.Method == http.MethodPost && query.Has("uploads"):
		f.mutex.Lock()
		id = strconv.Itoa(len(f.uploads) + 1)
		f.uploads[id] = map[int][]byte{}
		f.mutex.Unlock()
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id)
	case r.Method == http.MethodPut && id != "":
		number, _ := strconv.Atoi(query.Get("partNumber"))
		f.mutex.Lock()
		parts := f.uploads[id]
		if parts != nil {
			parts[number] = body
		}
		f.mutex.Unlock()
		if parts == nil {
			fail(w, http.StatusNotFound, "NoSuchUpload")
			return
		}
		w.Header().Set("ETag", fmt.Sprintf("%q", fmt.Sprint(number)))
	case r.Method == http.MethodPost && id != "":
		answer := f.put(bucket, object, f.joined(id), "")
		if answer.Code == http.StatusOK {
			answer.Body = bytes.NewBufferString(
				"<CompleteMultipartUploadResult><ETag>" + answer.Header().Get("ETag") + "</ETag></CompleteMultipartUploadResult>")
		}
		relay(w, answer, "NoSuchUpload")
	case r.Method == http.MethodDelete && id != "":
		f.joined(id)
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodPut:
		generation := r.Header.Get("x-goog-if-generation-match")
		if strings.HasPrefix(bucket, ignoring) {
			generation = ""
		}
		relay(w, f.put(bucket, object, body, generation), "")
	case r.Method == http.MethodDelete:
		relay(w, f.pass(http.MethodDelete, named(bucket, object), nil, nil), "NoSuchKey")
	default:
		relay(w, f.pass(r.Method, named(bucket, object)+"?alt=media", nil, r.Header), "NoSuchKey")
	}
}

// named returns the path of an object in the JSON API.
func named(bucket, object string) string {
	return "/storage/v1/b/" + bucket + "/o/" + url.PathEscape(object)
}

// put writes an object through the JSON API, and returns its answer with the headers of the XML API.
func (f *front) put(bucket, object string, body []byte, generation string) *httptest.ResponseRecorder {
	query := url.Values{"uploadType": {"media"}, "name": {object}}
	if generation != "" {
		query.Set("ifGenerationMatch", generation)
	}
	answer := f.pass(http.MethodPost, "/upload/storage/v1/b/"+bucket+"/o?"+query.Encode(), body, nil)
	var written struct{ Generation, Etag string }
	if answer.Code == http.StatusOK && json.Unmarshal(answer.Body.Bytes(), &written) == nil {
		answer.Body.Reset()
		answer.Header().Set("ETag", fmt.Sprintf("%q", strings.Trim(written.Etag, `"`)))
		answer.Header().Set("x-goog-generation", written.Generation)
	}
	return answer
}

// joined ends an upload, and returns its parts in their order.
func (f *front) joined(id string) []byte {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	parts := f.uploads[id]
	// The entry stays, because ids are counted by entries.
	f.uploads[id] = nil
	numbers := make([]int, 0, len(parts))
	for number := range parts {
		numbers = append(numbers, number)
	}
	sort.Ints(numbers)
	whole := []byte{}
	for _, number := range numbers {
		whole = append(whole, parts[number]...)
	}
	return whole
}

// pass sends a request to fake-gcs-server.
func (f *front) pass(method, target string, body []byte, header http.Header) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, target, bytes.NewReader(body))
	request.Host = xmlHost
	if header != nil {
		request.Header = header.Clone()
	}
	answer := httptest.NewRecorder()
	f.gcs.ServeHTTP(answer, request)
	return answer
}

// relay writes an answer. missing is the code of a 404.
func relay(w http.ResponseWriter, answer *httptest.ResponseRecorder, missing string) {
	codes := map[int]string{
		http.StatusBadRequest:                   "InvalidArgument",
		http.StatusNotFound:                     missing,
		http.StatusPreconditionFailed:           "PreconditionFailed",
		http.StatusRequestedRangeNotSatisfiable: "InvalidRange",
	}
	if code := codes[answer.Code]; code != "" {
		fail(w, answer.Code, code)
		return
	}
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Length", strconv.Itoa(answer.Body.Len()))
	w.WriteHeader(answer.Code)
	if _, err := w.Write(answer.Body.Bytes()); err != nil {
		log.Print(err)
	}
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	answer := struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
		Message string
	}{Code: code, Message: http.StatusText(status)}
	if err := xml.NewEncoder(w).Encode(answer); err != nil {
		log.Print(err)
	}
}
