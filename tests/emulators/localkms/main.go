// Command localkms is local-kms, an implementation of AWS KMS, on the loopback interface. Requests of access keys that a file names are
// refused, because local-kms has no permissions.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/nsmithuk/local-kms/src"
	"github.com/nsmithuk/local-kms/src/config"
	"github.com/nsmithuk/local-kms/src/data"
)

var credential = regexp.MustCompile(`Credential=([^/]+)/\d{8}/[a-z0-9-]+/kms/aws4_request`)

func main() {
	address := flag.String("address", "127.0.0.1:0", "host and port")
	folder := flag.String("data", "", "directory of the keys")
	denied := flag.String("denied", "", "file with one access key a line")
	flag.Parse()
	config.AWSAccountId, config.AWSRegion, config.DatabasePath = "111122223333", "eu-central-1", *folder
	database := data.NewDatabase(*folder)
	log.Fatal(http.ListenAndServe(*address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		signed := credential.FindStringSubmatch(r.Header.Get("Authorization"))
		names, err := os.ReadFile(*denied)
		if err != nil || signed == nil || slices.Contains(strings.Fields(string(names)), signed[1]) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"__type":"AccessDeniedException","Message":"not authorized to perform: kms:Decrypt"}`)
			return
		}
		src.HandleRequest(w, r, database)
	})))
}
