package tracing

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
)

// protocol is how spans are exported, by the name that the specification has for it.
type protocol string

const (
	off      protocol = ""
	overGRPC protocol = "grpc"
	overHTTP protocol = "http/protobuf"
)

// parse decides by the environment whether and how spans are exported. Libraries would log what makes no sense, and go on with
// what is usual; here it is an error.
func parse(getenv func(string) string) (protocol, error) {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return off, nil
	}
	const generalEndpoint, ownEndpoint = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	switch exporter := getenv("OTEL_TRACES_EXPORTER"); {
	case exporter == "none", exporter == "" && getenv(generalEndpoint) == "" && getenv(ownEndpoint) == "":
		return off, nil
	case exporter != "" && exporter != "otlp":
		return off, fmt.Errorf("OTEL_TRACES_EXPORTER=%q: must be otlp or none", exporter)
	}
	for _, name := range []string{generalEndpoint, ownEndpoint} {
		if err := checkEndpoint(name, getenv(name)); err != nil {
			return off, err
		}
	}
	const generalProtocol, ownProtocol = "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	name := generalProtocol
	if getenv(ownProtocol) != "" {
		name = ownProtocol
	}
	p := cmp.Or(protocol(getenv(name)), overHTTP)
	if p != overGRPC && p != overHTTP {
		return off, fmt.Errorf("%s=%q: must be %s or %s", name, p, overGRPC, overHTTP)
	}
	return p, nil
}

func checkEndpoint(name, endpoint string) error {
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("%s=%q: must be a URL such as http://collector:4318", name, endpoint)
	}
	return nil
}
