// Package deploy tests the manifests and the chart of this directory: what kustomize and helm make of them is committed, is
// what the API types allow, and follows the mechanism that the design recommends for CSI drivers. It holds no code; package
// crds generates the CustomResourceDefinitions of snapshots.
package deploy
