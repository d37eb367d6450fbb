package driverkit

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// ListRequest asks for a page of volumes.
type ListRequest struct {
	// After is the id after which the wanted volumes are.
	After string
	// Limit is the greatest number of volumes; 0 means all.
	Limit int
}

// Page is a part of a list.
type Page[T any] struct {
	// Entries are those whose id is greater than After of the request, sorted by id, at most as many as its Limit.
	Entries []T
}

// ListVolumes returns a page of the volumes, sorted by id. A volume that exists while all pages are read is in exactly one of them
// (CSI v1.13, "ListVolumes").
func (c *controller) ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if c.driver.List == nil {
		return nil, unimplemented("ListVolumes")
	}
	after, err := startOf(req)
	return perform(ctx, c.kit, operation{invalid: err}, func(ctx context.Context) (*csi.ListVolumesResponse, error) {
		volumes, next, err := page(int(req.GetMaxEntries()), func(limit int) (*Page[*Volume], error) {
			return c.driver.List(ctx, &ListRequest{After: after, Limit: limit})
		}, func(v *Volume) string { return v.ID })
		if err != nil {
			return nil, err
		}
		answer := &csi.ListVolumesResponse{NextToken: next, Entries: make([]*csi.ListVolumesResponse_Entry, 0, len(volumes))}
		for _, v := range volumes {
			entry := &csi.ListVolumesResponse_Entry{Volume: v.message(nil), Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: v.Nodes}}
			if err := c.addCondition(ctx, entry.GetStatus(), v.ID); err != nil && !isNotFound(err) { // It may have been deleted since.
				return nil, err
			}
			answer.Entries = append(answer.Entries, entry)
		}
		return answer, nil
	})
}

// tokenPrefix marks the paging tokens of this package, of which the rest is the last id of the page before.
const tokenPrefix = "after:"

// pageRequest is a request for a page.
type pageRequest interface {
	GetMaxEntries() int32
	GetStartingToken() string
}

// startOf returns the id after which a page begins. A token that is none of this package's is ErrBusy, the ABORTED that makes a CO start again
// (CSI v1.13, "ListVolumes Errors").
func startOf(req pageRequest) (after string, err error) {
	if n := req.GetMaxEntries(); n < 0 {
		return "", fmt.Errorf("max_entries: %d, must not be negative: %w", n, ErrInvalid)
	}
	token := req.GetStartingToken()
	if token == "" {
		return "", nil
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	after, ok := strings.CutPrefix(string(text), tokenPrefix)
	if err != nil || !ok || after == "" {
		return "", fmt.Errorf("starting_token: %q is not the next_token of a list: %w", token, ErrBusy)
	}
	return after, nil
}

// mostEntries is the largest page: with contexts of the greatest length, 4 KiB, it is about the largest message that a gRPC client takes, 4 MiB.
const mostEntries = 1000

// page reads a page of at most limit entries, 0 for as many as a page has, and returns the token of the following page; "" after the last one.
func page[T any](limit int, list func(limit int) (*Page[T], error), id func(T) string) (entries []T, next string, err error) {
	if limit == 0 || limit > mostEntries {
		limit = mostEntries
	}
	found, err := list(limit + 1) // One more says whether there is a following page.
	entries = valueOf(found).Entries
	if err != nil || len(entries) <= limit {
		return entries, "", err
	}
	last := id(entries[limit-1])
	return entries[:limit], base64.RawURLEncoding.EncodeToString([]byte(tokenPrefix + last)), nil
}

// PageOf returns the entries whose id is greater than after, sorted by id, at most limit of them; limit 0 means all. It is for a storage
// system that returns everything at once. all is not changed.
func PageOf[T any](all []T, id func(T) string, after string, limit int) *Page[T] {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b T) int { return strings.Compare(id(a), id(b)) })
	start, found := slices.BinarySearchFunc(sorted, after, func(e T, after string) int { return strings.Compare(id(e), after) })
	if found {
		start++
	}
	sorted = sorted[start:]
	if limit > 0 && limit < len(sorted) {
		sorted = sorted[:limit]
	}
	return &Page[T]{Entries: sorted}
}
