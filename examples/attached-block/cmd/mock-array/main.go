// Command mock-array runs the mock storage array of the example on this machine, with one account, csi, until it is killed.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/longshore-csi/longshore/examples/attached-block/array"
)

func main() {
	const poolSize = 1 << 30
	c := array.Config{Loop: true, HostLimit: 16, Pools: []array.Pool{
		{Place: array.Place{Pool: "a1", Zone: "a", Rack: "1"}, Size: poolSize},
		{Place: array.Place{Pool: "a2", Zone: "a", Rack: "2"}, Size: poolSize},
		{Place: array.Place{Pool: "b1", Zone: "b", Rack: "1"}, Size: poolSize},
	}}
	address := flag.String("listen", "127.0.0.1:8080", "`address` of the API")
	hosts := flag.String("hosts", "", "`names` of the nodes, separated by commas")
	password := flag.String("password", "swordfish", "password of the account")
	flag.StringVar(&c.Dir, "dir", "/var/lib/mock-array", "existing `directory` of the array's contents")
	flag.Parse()
	c.Hosts = strings.Split(*hosts, ",")
	c.Passwords = map[string]string{"csi": *password}
	a, err := array.Open(context.Background(), c)
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: *address, Handler: a, ReadHeaderTimeout: time.Second}
	log.Fatal(server.ListenAndServe())
}
