// Command versitygw is Versity S3 Gateway on a directory, without the backends and tests that its own program has, which take most of
// the time of a build. Accounts are in a file that each request reads.
package main

import (
	"context"
	"flag"
	"log"
	"os"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

// More than tests need.
const limit = 10_000

func main() {
	address := flag.String("address", "127.0.0.1:0", "host and port")
	accounts := flag.String("accounts", "", "directory of the file users.json")
	data := flag.String("data", "", "directory of the buckets")
	flag.Parse()
	backend, err := posix.New(*data, meta.XattrMeta{}, posix.PosixOpts{NewDirPerm: 0o755, Concurrency: limit})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(embedgw.RunVersityGW(context.Background(), backend, &embedgw.Config{
		RootUserAccess:    os.Getenv("ROOT_ACCESS_KEY_ID"),
		RootUserSecret:    os.Getenv("ROOT_SECRET_ACCESS_KEY"),
		Ports:             []string{*address},
		MaxConnections:    limit,
		MaxRequests:       limit,
		MultipartMaxParts: limit,
		KeepAlive:         true,
		IAMDir:            *accounts,
		IAMCacheDisable:   true,
		Quiet:             true,
	}))
}
