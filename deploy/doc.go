// Package deploy tests the manifests of this directory: what kustomize makes of them is committed in rendered/, is what the API
// types allow, and follows the mechanism that the design recommends for CSI drivers. It holds no code.
package deploy
