// Package grpcapi is the border to CSI: it checks requests, calls the
// services of package volume, and turns their errors into gRPC codes. It does
// no I/O of its own.
//
// Each CSI service is a struct that embeds its parts, one file per part. A
// part brings its methods and the capabilities that announce them. To remove
// a function from a driver: delete the file of the part, its line in the
// struct and its line in the constructor; the capability goes with it, and
// the methods answer UNIMPLEMENTED. What a volume can be made of is one more
// line, see controllerVolumes.sources, and so is the group of its files, see
// nodeStage.group.
package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// mapping is the one place where errors become codes; the first that
// matches counts. The order puts what a CO must react to before what came of
// cleaning up after it.
type mapping struct {
	err  error
	code codes.Code
}

func mappings() []mapping {
	return []mapping{
		{volume.ErrInvalid, codes.InvalidArgument},
		{volume.ErrBusy, codes.Aborted},
		{volume.ErrBadToken, codes.Aborted},
		{volume.ErrExists, codes.AlreadyExists},
		{volume.ErrExhausted, codes.ResourceExhausted},
		{volume.ErrOutOfRange, codes.OutOfRange},
		{volume.ErrInUse, codes.FailedPrecondition},
		{volume.ErrPrecondition, codes.FailedPrecondition},
		{volume.ErrConcurrentWrite, codes.FailedPrecondition},
		{volume.ErrNotFound, codes.NotFound},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
	}
}

// statusOf turns an error of a service into a gRPC status error. What is not
// mapped is INTERNAL. nil stays nil.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	list := mappings()
	i := slices.IndexFunc(list, func(m mapping) bool { return errors.Is(err, m.err) })
	if i < 0 {
		return status.Error(codes.Internal, err.Error())
	}
	return status.Error(list[i].code, err.Error())
}

// required refuses an empty field.
func required(field, value string) error {
	if value == "" {
		return status.Errorf(codes.InvalidArgument, "%s: is required", field)
	}
	return nil
}

// parseID checks the volume_id of a request.
func parseID(id string) (volume.ID, error) { return parseField("volume_id", id) }

// parseField checks a field of a request that is an id.
func parseField(field, id string) (volume.ID, error) {
	if err := required(field, id); err != nil {
		return "", err
	}
	parsed, err := volume.ParseID(id)
	if err != nil {
		return "", statusOf(fmt.Errorf("%s: %w", field, err))
	}
	return parsed, nil
}

// parseFields checks a field of a request that is a list of ids; the result is
// never nil.
func parseFields(field string, ids []string) ([]volume.ID, error) {
	list := make([]volume.ID, 0, len(ids))
	for _, id := range ids {
		parsed, err := parseField(field, id)
		if err != nil {
			return nil, err
		}
		list = append(list, parsed)
	}
	return list, nil
}

// maxName is the greatest length of a name in bytes (CSI v1.13, "Size
// Limits").
const maxName = 128

// checkName checks the name of what is to be made.
func checkName(name string) error {
	if err := required("name", name); err != nil {
		return err
	}
	if len(name) > maxName {
		return status.Errorf(codes.InvalidArgument, "name: %d bytes, must be at most %d", len(name), maxName)
	}
	return nil
}

// checkMax checks the max_entries of a list.
func checkMax(entries int32) error {
	if entries < 0 {
		return status.Errorf(codes.InvalidArgument, "max_entries: %d, must not be negative", entries)
	}
	return nil
}

// disabled is the answer of a method whose capability is switched off.
func disabled(method, flag string) error {
	return status.Errorf(codes.Unimplemented, "%s: is switched off, see --%s", method, flag)
}
