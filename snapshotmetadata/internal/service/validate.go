package service

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/validation"
)

// validate returns INVALID_ARGUMENT, with the field and the rule, for a request that no server could answer.
func (c *call) validate() error {
	if c.token == "" {
		return invalid("security_token", "", "must be the token of a service account for the audience of the SnapshotMetadataService")
	}
	if broken := validation.IsDNS1123Label(c.namespace); len(broken) > 0 {
		return invalid("namespace", c.namespace, strings.Join(broken, "; "))
	}
	field := "snapshot_name"
	if c.operation == OperationDelta {
		field = "target_snapshot_name"
	}
	if broken := validation.IsDNS1123Subdomain(c.snapshot); len(broken) > 0 {
		return invalid(field, c.snapshot, strings.Join(broken, "; "))
	}
	if c.offset < 0 {
		return invalid("starting_offset", c.offset, "must not be negative")
	}
	if c.maxResults < 0 {
		return invalid("max_results", c.maxResults, "must not be negative")
	}
	return nil
}

func invalid(field string, value any, rule string) error {
	if text, ok := value.(string); ok {
		return status.Errorf(codes.InvalidArgument, "%s %q: %s", field, text, rule)
	}
	return status.Errorf(codes.InvalidArgument, "%s %v: %s", field, value, rule)
}
